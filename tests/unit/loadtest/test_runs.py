"""The command line, the generators and the probes against a real server: the one of `loadtest.ceiling`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest import mixed, overhead, replay
from loadtest.benchmark import EXIT_MISSED, EXIT_OK, EXIT_UNUSABLE
from loadtest.ceiling import stream_server
from loadtest.cpu import cpu_seconds, cpu_since
from loadtest.options import parse_objective, parse_per_class
from loadtest.probe import ProbeError, served_model
from loadtest.records import Objective, Outcome, PlannedRequest, RequestRecord, TrafficClass
from loadtest.runner import ClosedLoop, LoadRun, run_closed_loop, run_open_loop
from loadtest.sse_server import CONTEXT_TOKENS, MODEL
from loadtest.streaming import Target

ROOT = Path(__file__).parents[3]
QUICK = ["--duration", "1", "--output-scale", "0.01", "--min-goodput", "0"]


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with stream_server(gap_s=0.0) as target:
        yield target


class CountingSender:
    """Answers at once and notes how many requests were under way together."""

    def __init__(self) -> None:
        self.sent: list[PlannedRequest] = []

    async def send(self, planned: PlannedRequest, record: RequestRecord, origin_s: float) -> RequestRecord:
        self.sent.append(planned)
        record.outcome = Outcome.OK
        return record


def planned(key: str, at_s: float = 0.0) -> PlannedRequest:
    return PlannedRequest(key, TrafficClass.CHAT, "/v1/chat/completions", b"{}", at_s=at_s)


def test_the_server_is_asked_for_its_model_and_context(server: Target) -> None:
    served = served_model(server)
    assert (served.name, served.context_tokens) == (MODEL, CONTEXT_TOKENS)
    with pytest.raises(ProbeError, match=f"'other'.*{MODEL}"):
        served_model(server, "other")


def test_an_open_loop_from_the_command_line_writes_its_reports(server: Target, tmp_path: Path) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    arguments = ["--host", server.url, *QUICK, "--rate", "30", "--warmup", "--html", str(page), "--json", str(data)]
    result = CliRunner().invoke(mixed.main, arguments)
    assert result.exit_code == EXIT_OK, result.output
    written = json.loads(data.read_text())
    assert {record["outcome"] for record in written["records"]} == {"ok"}
    assert len(written["warmup_records"]) == 4 * mixed.DEFAULT_SLOTS
    assert written["options"]["model"] == MODEL
    assert "api_key" not in written["options"]
    assert page.read_text().startswith("<!doctype html>")


def test_a_closed_loop_stops_after_its_requests(server: Target, tmp_path: Path) -> None:
    data = tmp_path / "r.json"
    arguments = [
        "--host",
        server.url,
        *QUICK,
        "--users",
        "3",
        "--think",
        "0",
        "--max-requests",
        "7",
        "--json",
        str(data),
    ]
    result = CliRunner().invoke(mixed.main, arguments)
    assert result.exit_code == EXIT_OK, result.output
    assert 7 <= len(json.loads(data.read_text())["records"]) <= 9  # each user may be about to send one


def test_a_missed_objective_is_the_exit_code(server: Target) -> None:
    arguments = ["--host", server.url, "--duration", "1", "--weights", "ide=1", "--objective", "ide=ttft:0"]
    result = CliRunner().invoke(mixed.main, arguments)
    assert result.exit_code == EXIT_MISSED, result.output
    assert "missed ide" in result.output


def test_no_server_is_said_with_what_to_do() -> None:
    result = CliRunner().invoke(mixed.main, ["--host", "http://127.0.0.1:9"])
    assert result.exit_code == EXIT_UNUSABLE
    assert "--host" in result.output


def test_a_trace_is_replayed_from_the_command_line(server: Target, tmp_path: Path) -> None:
    trace, data = tmp_path / "t.jsonl", tmp_path / "r.json"
    row = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
    trace.write_text("\n".join(json.dumps({**row, "timestamp": number * 100}) for number in range(5)))
    result = CliRunner().invoke(replay.main, [str(trace), "--host", server.url, "--speed", "4", "--json", str(data)])
    assert result.exit_code == EXIT_OK, result.output
    assert [record["output_tokens"] for record in json.loads(data.read_text())["records"]] == [3] * 5


def test_overhead_is_measured_against_a_running_server(server: Target, tmp_path: Path) -> None:
    arguments = ["--host", server.url, "--concurrency", "2", "--per-user", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(overhead.main, arguments)
    assert result.exit_code == EXIT_OK, result.output
    ((level,),) = json.loads((tmp_path / "overhead.json").read_text())[server.url]
    assert (level["failed"], level["tokens_per_s"] > 0) == (0, True)


def test_the_file_is_a_command_and_needs_no_locust(server: Target) -> None:
    command = [
        sys.executable,
        "loadtest/locust_ide.py",
        "--host",
        server.url,
        "--duration",
        "1",
        "--output-scale",
        "0.01",
    ]
    block = "import sys; sys.modules['locust'] = None"  # importing it would fail
    code = f"{block}; sys.argv = {command[1:]!r}; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)  # noqa: S603 - the command is our own
    assert done.returncode == EXIT_OK, done.stdout + done.stderr


def test_locust_runs_the_same_file(server: Target, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locust_ide.py", "--headless", "-u", "3", "-r", "3"]
    command += ["-t", "10s", "--host", server.url, "--stream-json", str(tmp_path / "r.json"), "--min-goodput", "0"]
    done = subprocess.run(  # noqa: S603 - the command is our own
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == EXIT_OK, done.stderr
    records = json.loads((tmp_path / "r.json").read_text())["records"]
    outcomes = [record["outcome"] for record in records]
    assert "ok" in outcomes
    assert set(outcomes) <= {"ok", "unfinished"}, "what the end of the run cut off is neither lost nor called failed"


async def test_an_open_loop_sends_everything_and_notes_its_lag() -> None:
    run = LoadRun(duration_s=0.05)
    sender = CountingSender()
    await run_open_loop(sender, [planned("a"), planned("b", 0.01), planned("c", 0.02)], run)
    assert [record.key for record in run.records] == ["a", "b", "c"]
    assert all(record.lag_s >= 0 for record in run.records)


async def test_a_closed_loop_has_as_many_users_as_its_shape_wants() -> None:
    run = LoadRun(duration_s=0.1)
    users = [iter([planned(f"{user}/{number}") for number in range(10_000)]) for user in range(4)]
    sender = CountingSender()
    load = ClosedLoop(users, base_users=2, think_s=0.001, shape=lambda elapsed: 1.0, max_requests=100)
    await run_closed_loop(sender, load, run)
    assert {request.key.split("/")[0] for request in sender.sent} == {"0", "1"}


def test_the_cpu_of_this_process_is_seen() -> None:
    before = cpu_seconds()
    total = 0
    while cpu_seconds()[os.getpid()] - before[os.getpid()] < 0.1:
        total += sum(range(10_000))
    assert os.getpid() in [process.pid for process in cpu_since(before)]


def test_options_per_class_are_read_and_refused_by_name() -> None:
    assert parse_per_class("ide=1,chat=0.2", float) == {TrafficClass.IDE: 1.0, TrafficClass.CHAT: 0.2}
    with pytest.raises(Exception, match="the classes are ide, chat, review, summary"):
        parse_per_class("code=1", float)
    defaults = {TrafficClass.IDE: Objective(ttft_s=1.0, e2e_s=9.0)}
    name, objective = parse_objective("ide=ttft:0.5,itl:0.1", defaults)
    assert (name, objective) == (TrafficClass.IDE, Objective(ttft_s=0.5, itl_s=0.1, e2e_s=9.0))
    with pytest.raises(Exception, match="ttft:1"):
        parse_objective("ide=fast", defaults)
