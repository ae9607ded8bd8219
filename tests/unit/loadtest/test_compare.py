from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from conftest import RecordMaker

from loadtest.bootstrap import PairedBlock, ratio_of
from loadtest.compare import Requirement, metrics_of, ratios_of, read_plan
from loadtest.probe import ProbeError
from loadtest.records import Outcome, RequestRecord, TrafficClass
from loadtest.stacks import StackConfig, running_stack, stop_process_tree, substitute
from loadtest.summary import quantile

PLANS = sorted((Path(__file__).parents[3] / "loadtest" / "plans").glob("compare-*.yaml"))


def median_ttft(records: Sequence[RequestRecord]) -> float | None:
    return quantile([record.ttft_s for record in records if record.ttft_s is not None], 0.5)


def blocks_with_ratio(make_record: RecordMaker, ratio: float, requests: int, seed: int = 0) -> list[PairedBlock]:
    rng = random.Random(seed)
    blocks = []
    for _ in range(2):
        theirs = [make_record(key=str(n), ttft_s=rng.lognormvariate(0, 0.3)) for n in range(requests)]
        ours = [make_record(key=str(n), ttft_s=ratio * rng.lognormvariate(0, 0.3)) for n in range(requests)]
        blocks.append(PairedBlock.of(ours, theirs))
    return blocks


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(make_record: RecordMaker) -> None:
    held = 0
    for seed in range(40):
        ratio = ratio_of(blocks_with_ratio(make_record, 0.5, 80, seed), median_ttft, seed, resamples=200)
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 0.5 <= ratio.high
    assert held >= 34  # of 40 at 95 %: fewer has a chance below 1 in 1000


def test_more_requests_narrow_the_interval(make_record: RecordMaker) -> None:
    few, many = (ratio_of(blocks_with_ratio(make_record, 2.0, n), median_ttft) for n in (20, 500))
    assert few.high - few.low > 2 * (many.high - many.low)  # type: ignore[operator]  # neither is None here
    assert many.value == pytest.approx(2.0, rel=0.1)


def test_a_ratio_repeats_with_its_seed(make_record: RecordMaker) -> None:
    blocks = blocks_with_ratio(make_record, 2.0, 20)
    assert ratio_of(blocks, median_ttft, seed=1) == ratio_of(blocks, median_ttft, seed=1)


def test_a_ratio_to_nothing_is_not_a_number(make_record: RecordMaker) -> None:
    refused = PairedBlock.of([make_record()], [make_record(ttft_s=None)])
    assert ratio_of([refused], median_ttft).value is None
    good = metrics_of({}, 60.0)["good"]
    assert ratio_of([PairedBlock.of([make_record()], [make_record(outcome=Outcome.REFUSED)])], good).value is None


def test_runs_of_different_schedules_are_not_compared(make_record: RecordMaker) -> None:
    with pytest.raises(ValueError, match="schedule"):
        PairedBlock.of([make_record(key="a")], [make_record(key="b")])


def test_a_requirement_is_broken_by_name_and_kept_quietly(make_record: RecordMaker) -> None:
    ratio = ratio_of(blocks_with_ratio(make_record, 0.5, 50), median_ttft, resamples=10)
    assert Requirement(traffic="ide", metric="ttft_p50_s", at_most=1.0).broken_by(ratio) is None
    broken = Requirement(traffic="ide", metric="ttft_p50_s", at_most=0.1).broken_by(ratio)
    assert broken is not None
    assert broken.startswith("ide ttft_p50_s: 0.")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_the_plans_of_the_repository_are_valid(path: Path) -> None:
    plan = read_plan(path)
    assert set(plan.rates_per_s) <= set(plan.sessions)


def test_there_are_plans() -> None:
    assert PLANS


def test_an_unknown_key_of_a_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("stacks: []\nspeed: 3\n")
    with pytest.raises(ProbeError, match="speed"):
        read_plan(path)


def test_a_missing_environment_variable_is_named() -> None:
    assert substitute("a/${MODEL}/b", {"MODEL": "m"}) == "a/m/b"
    with pytest.raises(ProbeError, match="MODEL_FOLDER"):
        substitute("${MODEL_FOLDER}", {})


def test_stopping_a_process_ends_its_children_too() -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); "
    script += "print('started', flush=True); input()"
    process = subprocess.Popen(  # noqa: S603 - the command is our own
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()
    stop_process_tree(process.pid, timeout_s=2.0)
    process.communicate()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_stack_that_ends_at_once_says_where_its_log_is(tmp_path: Path) -> None:
    stack = StackConfig(name="x", command=[sys.executable, "-c", "print('no model')"], url="http://127.0.0.1:9")
    with pytest.raises(ProbeError, match="log"), running_stack(stack, tmp_path / "x.log"):
        pass
    assert (tmp_path / "x.log").read_text() == "no model\n"


def test_first_touches_are_compared_apart(make_record: RecordMaker) -> None:
    from loadtest.benchmark import Measured
    from loadtest.runner import LoadRun

    def side(ttft_s: float) -> Measured:
        run = LoadRun(10.0)
        run.records = [
            make_record(key="a", ttft_s=ttft_s),
            make_record(key="b", ttft_s=9.0, first_touch=True),
            make_record(key="c", ttft_s=ttft_s, traffic_class=TrafficClass.SUMMARY),
        ]
        return Measured(run, [])

    ratios = ratios_of([(side(1.0), side(4.0))], {}, 10.0)
    assert set(ratios) == {"ide", "summary", "first touch", "all"}
    assert ratios["ide"]["ttft_p95_s"].value == 0.25
    assert ratios["first touch"]["ttft_p95_s"].value == 1.0
    assert ratios["all"]["good"].value == 1.0
