from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments.engine_activity import BETWEEN_STEPS_NS, ENGINES, LONGEST_STEP_NS, Claim, EngineActivity, Others

# Another engine's process: looks at the others, begins a step, or begins and ends one, and lives on until told to end.
_ENGINE = """
import sys
from pathlib import Path
from deployments.engine_activity import Claim, EngineActivity
activity = EngineActivity(Path(sys.argv[1]), lambda: int(sys.argv[2]))
if sys.argv[3] == "looks":
    activity.others()
else:
    activity.begin_step(Claim(int(sys.argv[4])))
if sys.argv[3] == "ends":
    activity.end_step()
print("told", flush=True)
sys.stdin.read()
"""
NOW_NS = 1_000_000_000_000


class Clock:
    def __init__(self, now_ns: int = NOW_NS) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engines"


@pytest.fixture
def start(path):
    """Start another engine's process; it has told of its step when this returns."""
    started: list[subprocess.Popen[str]] = []

    def other(what: str, at_ns: int = NOW_NS, claim: Claim = Claim.URGENT) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _ENGINE, str(path), str(at_ns), what, str(int(claim))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, **pipes)  # noqa: S603 - our own interpreter
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "told\n"
        return process

    yield other
    for process in started:
        process.communicate()


def test_an_engine_alone_on_its_machine_sees_nobody_at_work(path):
    activity = EngineActivity(path, Clock())
    assert not activity.begin_step().compute
    activity.end_step()
    assert not activity.begin_step().compute


def test_an_engine_in_a_step_is_at_work_and_so_it_is_for_a_moment_after_it(path, start):
    clock = Clock()
    activity = EngineActivity(path, clock)
    start("ends")
    assert activity.begin_step().compute
    clock.now_ns += BETWEEN_STEPS_NS - 1
    assert activity.begin_step().compute
    clock.now_ns += 1
    assert not activity.begin_step().compute


def test_a_long_step_is_work_until_it_ends(path, start):
    clock = Clock()
    activity = EngineActivity(path, clock)
    start("goes on")
    clock.now_ns += LONGEST_STEP_NS - 1
    assert activity.begin_step().compute


def test_an_engine_killed_in_a_step_is_at_work_for_a_few_seconds_more_and_its_place_is_free(path, start):
    clock = Clock()
    activity = EngineActivity(path, clock)
    killed = start("goes on")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert activity.begin_step().compute
    clock.now_ns += LONGEST_STEP_NS
    assert not activity.begin_step().compute
    start("ends", clock.now_ns)
    assert path.read_bytes()[16:] == bytes(8 * (ENGINES - 2))


@pytest.mark.parametrize(
    ("claim", "in_its_step", "after_it"),
    [
        (Claim.URGENT, Others(compute=True, urgent=True), Others(compute=True, urgent=True)),
        (Claim.NONE, Others(compute=True), Others(compute=True)),
        (Claim.TURN, Others(compute=True, turn=True), Others(compute=True)),
    ],
)
def test_an_engine_tells_what_it_claims_and_a_turn_ends_with_its_step(path, start, claim, in_its_step, after_it):
    clock = Clock()
    activity = EngineActivity(path, clock)
    start("goes on", claim=claim)
    assert activity.others() == in_its_step
    clock.now_ns += LONGEST_STEP_NS
    assert activity.others() == Others()
    start("ends", clock.now_ns, claim)
    assert activity.others() == after_it


def test_an_engine_that_only_looks_claims_nothing(path, start):
    start("looks")
    assert EngineActivity(path, Clock()).others() == Others()


def test_several_engines_do_not_overwrite_each_other(path, start):
    clock = Clock()
    activity = EngineActivity(path, clock)
    start("goes on")
    start("ends")
    clock.now_ns += BETWEEN_STEPS_NS + 1
    assert activity.begin_step().compute


def test_what_was_written_before_the_machine_was_started_anew_is_no_work(path, start):
    start("goes on")
    assert EngineActivity(path, Clock(5_000)).begin_step() == Others()


def test_a_file_that_is_a_link_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        EngineActivity(path)
    assert not Path(tmp_path / "elsewhere").exists()
