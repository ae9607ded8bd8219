"""Every expression finds data in a Prometheus that has scraped every metric as Ray's metrics port shows it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalogue import PanelQuery, alert_expressions, queries_of_all_panels

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="no Prometheus here; Debian has it in `prometheus`"
)
NOW_S = 1_750_000_000  # of the samples, and the time that the queries ask for
STEP_S, STEPS = 10, 60

# In a process of its own: Ray's recorder becomes OpenTelemetry's for the whole process. Nothing of Ray is started.
_EXPOSE = """
from prometheus_client import generate_latest
from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder
from app import metrics

recorder = OpenTelemetryMetricRecorder(gauge_metric_ttl_seconds=600)
for metric in metrics.ALL:
    labels = {label: "hot" for label in metric.labels} | {"application": "a"}
    if metric not in metrics.SCALING_METRICS:
        labels |= {"deployment": "HotEngine", "replica": "r1"}
    if metric.kind is metrics.Kind.HISTOGRAM:
        recorder.register_histogram_metric(metric.name, metric.help, list(metric.bounds))
        counts = [1] * (len(metric.bounds) + 1)
        recorder.record_histogram_aggregated_batch(metric.name, [{"tags": labels, "bucket_counts": counts}])
        continue
    register = {"counter": recorder.register_counter_metric, "gauge": recorder.register_gauge_metric}[metric.kind]
    register(metric.name, metric.help)
    recorder.set_metric_value(metric.name, labels, 1.0)
    if "action" in labels:
        recorder.set_metric_value(metric.name, labels | {"action": "refuse"}, 1.0)
print(generate_latest().decode())
"""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus with ten minutes of those samples."""
    directory = tmp_path_factory.mktemp("prometheus")
    samples = directory / "samples.txt"
    samples.write_text("".join(_history(_exposed())) + "# EOF\n")
    blocks = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", samples, directory / "data"]
    subprocess.run([str(part) for part in blocks], check=True, capture_output=True, timeout=60)  # noqa: S603 - Debian's own - promtool
    (directory / "prometheus.yml").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
    )
    command = [str(PROMETHEUS), *options]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:  # noqa: S603 - Debian's own
        try:
            _wait_until_ready(f"http://{address}", process, directory / "log")
            yield f"http://{address}"
        finally:
            process.terminate()


@pytest.mark.parametrize("query", queries_of_all_panels(), ids=lambda query: f"{query.board}: {query.panel}")
def test_every_panel_has_data(prometheus: str, query: PanelQuery) -> None:
    values = [float(sample["value"][1]) for sample in ask(prometheus, query.expr)]
    assert values
    assert all(value == value for value in values)


@pytest.mark.parametrize("expr", alert_expressions())
def test_every_alert_can_be_evaluated(prometheus: str, expr: str) -> None:
    ask(prometheus, expr)


def ask(prometheus: str, expr: str) -> list[dict[str, Any]]:
    parameters = urllib.parse.urlencode({"query": expr, "time": NOW_S})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{parameters}", timeout=30) as answer:  # noqa: S310 - on loopback
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def _exposed() -> list[str]:
    """Lines of samples of our metrics."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _EXPOSE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)  # noqa: S603 - Debian's own - our own code
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("ray_")]


def _history(lines: list[str]) -> Iterator[str]:
    """The same series over time. All rise: what is a counter must, and of a gauge the last value is asked for."""
    for line in lines:
        series, value = line.rsplit(" ", 1)
        for step in range(STEPS):
            yield f"{series} {float(value) * (step + 1)} {NOW_S - (STEPS - 1 - step) * STEP_S}\n"


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/-/ready", timeout=5):  # noqa: S310 - on loopback
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(log.read_text())
