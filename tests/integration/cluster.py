"""Looking inside a running stack: its processes, its replicas' counters, its status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psutil
import ray
from ray import serve
from ray.serve.schema import ServeInstanceDetails

from tests.integration.stack import Stack, process_name

APPLICATION = "kvpulse"
ENGINES = {"hot": "HotEngine", "cold": "ColdEngine"}
_T = TypeVar("_T")


def eventually(
    probe: Callable[[], _T], what: str, timeout_s: float = 180.0, instead: Callable[[], Any] | None = None
) -> _T:
    """The first true value of `probe`; at the deadline AssertionError with the last value, or what `instead` says."""
    deadline = time.monotonic() + timeout_s
    while not (value := probe()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} within {timeout_s:g} s; instead: {instead() if instead else value!r}")
        time.sleep(0.25)
    return value


class Cluster:
    """A connection of this process to a stack's Ray cluster. One at a time per process; `close` before the stack ends:
    a driver does not survive its cluster."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._handles: dict[str, Any] = {}
        raylet = stack.processes("raylet/raylet")[0]
        match = re.search(r"--gcs-address=(\S+)", process_name(raylet))
        assert match is not None, process_name(raylet)
        context = ray.init(address=match.group(1), namespace="serve", log_to_driver=False, configure_logging=False)
        self.dashboard_url = f"http://{context.dashboard_url}"

    def close(self) -> None:
        for handle in self._handles.values():
            handle.shutdown()  # else it goes on reporting to a controller that is no more
        serve.context._set_global_client(None)  # Serve would talk to this cluster's controller from the next one
        ray.shutdown()

    def statistics(self, path: str) -> list[dict[str, int]]:
        """Of each replica of a path."""
        return list(self.call(path, "statistics"))

    def call(self, path: str, method: str) -> list[Any]:
        """What each replica of a path returns."""
        return self.broadcast(ENGINES[path], method)

    def broadcast(self, deployment: str, method: str) -> list[Any]:
        """What each replica of a deployment returns."""
        if deployment not in self._handles:
            self._handles[deployment] = serve.get_deployment_handle(deployment, APPLICATION)
        return list(self._handles[deployment].broadcast(method).results(timeout_s=60))

    def idle(self) -> bool:
        """Whether no replica has a request or an answer that has not ended."""
        replicas = [replica for path in ENGINES for replica in self.statistics(path)]
        return all(not any(replica.values()) for replica in replicas)

    def wait_until_idle(self, timeout_s: float = 60.0) -> None:
        def all_zero() -> bool:
            try:
                return self.idle()
            except Exception:  # a replica that died under the call; the next one asks its successor
                return False

        eventually(all_zero, "every replica's counters at zero", timeout_s)

    def running_replicas(self, deployment: str) -> int:
        """Replicas that Serve calls running, and that are not about to be replaced."""
        status: Any = serve.status().applications[APPLICATION].deployments[deployment]
        states = dict(status.replica_states)
        return states.get("RUNNING", 0) if set(states) <= {"RUNNING"} else 0

    def replicas(self, deployment: str) -> list[Any]:
        """Serve's own details of each replica: its node, its process."""
        details = ServeInstanceDetails(**serve.context._get_global_client().get_serve_details())
        return list(details.applications[APPLICATION].deployments[deployment].replicas)

    def replica_processes(self, deployment: str) -> list[psutil.Process]:
        return self._stack.processes(f"ray::ServeReplica:{APPLICATION}:{deployment}")

    def replica_process(self, deployment: str, replica_id: str) -> psutil.Process:
        return psutil.Process(next(r.pid for r in self.replicas(deployment) if r.replica_id == replica_id))

    def engine_processes(self, path: str) -> list[psutil.Process]:
        """The EngineCore process of each replica of a path."""
        replicas = self.replica_processes(ENGINES[path])
        children = [child for replica in replicas for child in replica.children()]
        return [child for child in children if "VLLM::EngineCore" in process_name(child)]
