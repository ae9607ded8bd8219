"""`python -m tests.integration.two_nodes serve_config.yaml`: `serve run` on a Ray cluster of two nodes, both on this
machine. SIGTERM ends it and both nodes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import deployments  # noqa: F401 - Ray's environment, as the class path in the YAML sets it for `serve run` alone

NODES = 2


def main(config: str) -> int:
    from ray.cluster_utils import Cluster

    cluster = Cluster(shutdown_at_exit=True)
    for _ in range(NODES):
        cluster.add_node(num_cpus=1)
    serve = Path(sys.executable).with_name("serve")
    serving = subprocess.Popen([serve, "run", "--address", cluster.address, config])  # noqa: S603 - our own command

    def stop(_signal: int, _frame: FrameType | None) -> None:
        serving.terminate()

    signal.signal(signal.SIGTERM, stop)
    try:
        return serving.wait()
    finally:
        subprocess.run([serve, "shutdown", "--yes"], env={"RAY_ADDRESS": cluster.address}, check=False)  # noqa: S603 - our own command
        cluster.shutdown()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
