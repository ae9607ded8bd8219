"""The product's router against modelled engines, small: what must hold in any run."""

from __future__ import annotations

import random

import pytest

from app.config.schema import RoutingConfig
from benchmarks.engine_model import EngineSpeed, SimulatedEngine
from benchmarks.policies import Clock, KVPulse
from benchmarks.routing_quality import contenders, simulate
from benchmarks.simulation import Result, Simulation
from benchmarks.workloads import Arrival, Workload, shared_prefix

RULES = RoutingConfig()


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    workload = shared_prefix(600, replicas=8)
    names = ("oracle", "kvpulse", "kvpulse, 4 routers, told of queued", "least loaded")
    return {name: simulate(workload, contenders(RULES)[name], seed=0) for name in names}


def test_late_reports_cost_little_against_an_oracle(results: dict[str, Result]) -> None:
    assert results["kvpulse"].hit_ratio > 0.9 * results["oracle"].hit_ratio


def test_routers_that_share_no_state_lose_little(results: dict[str, Result]) -> None:
    assert results["kvpulse, 4 routers, told of queued"].hit_ratio > 0.9 * results["kvpulse"].hit_ratio


def test_prefixes_are_found_without_gathering_the_load(results: dict[str, Result]) -> None:
    assert results["kvpulse"].hit_ratio > 2 * results["least loaded"].hit_ratio
    assert results["kvpulse"].max_over_mean_load < 1.3


def test_nothing_is_in_flight_after_the_last_answer() -> None:
    clock = Clock()
    engines = [SimulatedEngine(4829, EngineSpeed()) for _ in range(4)]
    policy = KVPulse(4, clock, random.Random(1), RULES)
    Simulation(engines, policy, clock).run(shared_prefix(100, replicas=8).arrivals)
    for standing in policy.views[0].standings():
        assert (standing.pending_prefill_tokens, standing.pending_decode_tokens) == (0, 0)
        assert standing.load is not None


def test_the_unbounded_hit_ratio_is_what_earlier_prompts_contain() -> None:
    arrivals = (
        Arrival(0.0, 1025, 1, (1, 2, 3), 512),
        Arrival(1.0, 1537, 1, (1, 2, 4, 5), 512),  # shares two blocks
        Arrival(2.0, 1536, 1, (1, 2, 4), 512),  # the third ends with the last token, which is always computed
    )
    assert Workload("", arrivals, 1).unbounded_hit_ratio() == pytest.approx(2048 / 4098)
