from __future__ import annotations

import random

import pytest

from loadtest.bootstrap import Ratio, ratio_of_means
from loadtest.paired_cpu import (
    WHOLE,
    WITH_IDLE,
    Block,
    Pair,
    Side,
    Verdict,
    cost_rows,
    costs_of,
    idle_ms_per_s,
    order,
    role_of,
    used_by_role,
    verdict_of,
)


def block(ingress_s: float, engine_s: float = 3.0, idle_s: float = 0.0, requests: int = 100) -> Block:
    return Block(requests, 4.0, {"ingress": ingress_s, "engine cores": engine_s}, {"rest": idle_s})


def drifting_pairs(ratio: float, noise: float, pairs: int, seed: int = 0) -> list[tuple[float, float]]:
    """The machine gets slower by half over the run; each block has some noise of its own."""
    rng = random.Random(seed)
    speeds = [1 + 0.5 * number / pairs for number in range(pairs)]
    return [(ratio * speed * rng.gauss(1, noise), speed * rng.gauss(1, noise)) for speed in speeds]


def test_who_goes_first_alternates() -> None:
    assert [side for pair in range(4) for side in order(pair)] == ["on", "off", "off", "on", "on", "off", "off", "on"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("VLLM::EngineCore", "engine cores"),
        ("ray::ServeReplica:kvpulse:Ingress.handle_request", "ingress"),
        ("ray::ServeReplica:kvpulse:HotEngine", "engine replicas"),
        ("ray::ServeReplica:kvpulse:ColdEngine", "engine replicas"),
        ("ray::ServeController.listen_for_change", "controller"),
        ("ray::HAProxyManager", "proxy"),
        ("haproxy haproxy.cfg", "proxy"),
        ("ray::DashboardAgent", "Ray's agents"),
        ("ray::ServeReplica:kvpulse:PulseBoard", "board"),
        ("raylet", "rest"),
    ],
)
def test_a_process_is_known_by_its_title(name: str, role: str) -> None:
    assert role_of(name) == role


def test_the_cpu_of_a_role_is_that_of_all_its_processes_since_the_first_look() -> None:
    names = {1: "raylet", 2: "gcs_server", 3: "haproxy"}
    assert used_by_role({1: 10.0, 2: 5.0}, {1: 10.5, 2: 5.25, 3: 0.5}, names) == {"rest": 0.75, "proxy": 0.5}


def test_the_ratio_is_of_cpu_per_request_by_role_and_for_the_whole() -> None:
    pairs: list[Pair] = [{Side.ON: block(1.1), Side.OFF: block(1.0)}] * 3
    costs = {cost.name: cost for cost in costs_of(pairs)}
    assert list(costs) == [WHOLE, WITH_IDLE, "engine cores", "ingress"]
    assert costs["ingress"].ratio.value == pytest.approx(1.1)
    assert costs["engine cores"].ratio.value == pytest.approx(1.0)
    assert costs[WHOLE].ratio.value == costs[WHOLE].ratio.low == pytest.approx(4.1 / 4.0)
    assert costs["ingress"].added_ratio == costs[WHOLE].added_ratio == pytest.approx(0.1 / 4.0)


def test_what_an_idle_stack_spends_is_read_in_the_blocks_of_the_other() -> None:
    pairs: list[Pair] = [{Side.ON: block(1.0, idle_s=0.2), Side.OFF: block(1.0, idle_s=0.28)}]
    assert idle_ms_per_s(pairs, Side.ON) == pytest.approx(70)
    assert idle_ms_per_s(pairs, Side.OFF) == pytest.approx(50)
    with_idle = next(cost for cost in costs_of(pairs) if cost.name == WITH_IDLE)
    assert with_idle.ratio.value == pytest.approx((4.0 + 0.08) / 4.0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.02, Verdict.WITHIN),
        (1.0, 1.03, Verdict.TOO_WIDE),
        (1.02, 1.03, Verdict.TOO_WIDE),
        (1.021, 1.03, Verdict.BEYOND),
        (None, None, Verdict.TOO_WIDE),
    ],
)
def test_only_a_whole_interval_on_one_side_of_the_limit_decides(
    low: float | None, high: float | None, verdict: Verdict
) -> None:
    assert verdict_of(Ratio(1.0, 1.0, 1.0, low, high), limit=1.02) is verdict


def test_a_drift_of_the_machine_does_not_widen_the_interval() -> None:
    ratio = ratio_of_means(drifting_pairs(1.01, noise=0.01, pairs=24))
    assert ratio.low is not None and ratio.high is not None
    assert ratio.high - ratio.low < 0.02


def test_the_interval_of_pairs_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        ratio = ratio_of_means(drifting_pairs(1.01, 0.03, 24, seed), seed, resamples=300)
        assert ratio.low is not None and ratio.high is not None
        held += ratio.low <= 1.01 <= ratio.high
    assert held >= 50  # of 60 at 95 %: fewer has a chance below 1 in 1000


def test_a_base_of_nothing_has_no_ratio() -> None:
    assert ratio_of_means([(1.0, 0.0), (1.0, 0.0)]) == Ratio(1.0, 0.0, None)


def test_a_row_tells_milliseconds_ratio_interval_and_share_of_the_whole() -> None:
    pairs: list[Pair] = [{Side.ON: block(1.1), Side.OFF: block(1.0)}]
    ingress = next(row for row in cost_rows(costs_of(pairs)) if row[0] == "ingress")
    assert ingress == ["ingress", "11.00", "10.00", "1.1000", "1.1000 to 1.1000", "+2.50%"]
