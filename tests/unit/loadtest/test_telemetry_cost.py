from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import yaml

from loadtest.cpu import tree_cpu_seconds
from loadtest.isolation import isolated_ray
from loadtest.otlp_sink import otlp_sink
from loadtest.paired_cpu import Side
from loadtest.telemetry_cost import Load, stack_config

PLAN = Path(__file__).parents[3] / "loadtest" / "plans" / "serve_tiny.yaml"


def test_a_block_is_the_same_work_for_both_stacks_and_new_to_each() -> None:
    load = Load(users=2, per_user=3)
    bodies = [[planned.body for user in load.of_block("tiny", number) for planned in user] for number in (0, 0, 1)]
    assert bodies[0] == bodies[1]
    assert len({*bodies[0], *bodies[2]}) == 12


def test_the_stacks_differ_in_telemetry_and_addresses_alone(tmp_path: Path) -> None:
    written = []
    for side, enabled in ((Side.ON, True), (Side.OFF, False)):
        folder = tmp_path / side
        folder.mkdir()
        config = stack_config(PLAN, side, {"enabled": enabled}, folder)
        content = yaml.safe_load(Path(config.command[-1]).read_text(encoding="utf-8"))
        assert config.url.endswith(f":{content['http_options'].pop('port')}")
        assert content["applications"][0]["args"].pop("telemetry") == {"enabled": enabled}
        written.append(content)
    assert written[0] == written[1]


def test_stacks_started_together_share_no_port_and_no_file(tmp_path: Path) -> None:
    first, second = (isolated_ray(tmp_path / str(place), place) for place in (0, 1))
    same = {name for name in first if first[name] == second[name]}
    assert same == {"RAY_ADDRESS"}  # `local`: a cluster of its own


def test_the_sink_takes_exports_and_counts_them() -> None:
    with otlp_sink() as sink:
        for path in ("/v1/metrics", "/v1/metrics", "/v1/traces"):
            assert httpx.post(sink.url + path, content=b"protobuf").status_code == 200
        assert sink.exports == {"/v1/metrics": 2, "/v1/traces": 1}


def test_the_cpu_of_a_tree_is_that_of_its_processes_alone() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        assert process.stdout is not None
        process.stdout.readline()
        child = psutil.Process(process.pid).children()[0]
        seconds = tree_cpu_seconds(process.pid)
        assert set(seconds) == {process.pid, child.pid}
        assert seconds[child.pid] <= sum(child.cpu_times()[:2])
        process.communicate(b"\n")
