"""Whatever is reported, no path leaves its bounds, and both together stay within what they share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.scaling import ScalingConfig
from app.decisions.scaling import FleetScaler, ScalingReason
from app.requests import RequestPath
from app.state.fleet import Fleet, PathFleet, Report
from app.state.scaling_inputs import EngineStats, IngressStats
from app.state.shared_budget import SharedBudget
from tests.unit.app.decisions.simulated_fleet import CAPACITY, COLD, HOT, Engines, Simulation

RULES = ScalingConfig(consolidation_window_s=10, capacity_tokens_per_s=CAPACITY)
amounts = st.floats(0, 1e6)
ratios = st.floats(0, 1)
engine_stats = st.builds(
    EngineStats,
    kv_usage_ratio=ratios,
    queued_prefill_tokens=amounts,
    running_sequences=amounts,
    waiting_sequences=amounts,
    computed_tokens_per_s=amounts,
    busy_ratio=ratios,
    preemptions_per_s=amounts,
    evicted_blocks_per_s=amounts,
    prefix_hit_ratio=st.none() | ratios,
)
ingress_stats = st.builds(IngressStats, **dict.fromkeys(IngressStats.__struct_fields__, amounts))
ages = st.floats(0, 60)


@st.composite
def path_fleets(draw: st.DrawFn) -> PathFleet:
    least = draw(st.integers(1, 4))
    most = draw(st.integers(least, 12))
    running = draw(st.integers(0, 14))
    reports = draw(st.lists(st.builds(Report, engine_stats, ages), max_size=running))
    return PathFleet(running, draw(st.integers(0, 14)), least, most, reports)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    paths: dict[RequestPath, PathFleet] = {HOT: draw(path_fleets()), COLD: draw(path_fleets())}
    return Fleet(paths, draw(st.integers(1, 3)), draw(st.lists(st.builds(Report, ingress_stats, ages), max_size=3)))


@settings(max_examples=100)
@given(st.lists(st.tuples(fleets(), st.floats(0, 30)), min_size=1, max_size=8), st.booleans(), st.floats(1, 8))
def test_no_decision_leaves_the_bounds_or_the_budget(
    history: list[tuple[Fleet, float]], lend: bool, devices: float
) -> None:
    costs = {HOT: 0.3, COLD: 0.7}
    scaler = FleetScaler(RULES, {HOT: 8, COLD: 8}, SharedBudget(devices, costs, lend))
    now_s = 1e9
    for fleet, pause_s in history:
        now_s += pause_s
        decided = scaler.decide(fleet, now_s)
        for path, decision in decided.items():
            assert fleet.paths[path].least <= decision.desired_replicas <= fleet.paths[path].most
        used = sum(costs[path] * decision.desired_replicas for path, decision in decided.items())
        in_any_case = sum(costs[path] * fleet.paths[path].least for path in decided)
        assert used <= max(devices, in_any_case) + 1e-6


def shared(lend: bool) -> SharedBudget:
    return SharedBudget(4.0, {HOT: 0.5, COLD: 0.5}, lend)


def test_each_path_has_its_part_of_the_budget() -> None:
    hot = Engines(lambda now_s: 9000.0, most=8)
    simulation = Simulation(RULES, hot, budget=shared(lend=False))
    simulation.run(120)
    assert hot.target == 4
    assert simulation.decisions[-1].reason is ScalingReason.BUDGET


def test_a_free_part_is_lent_where_the_configuration_says_so_and_returned_when_wanted() -> None:
    hot = Engines(lambda now_s: 9000.0, most=8)
    cold = Engines(lambda now_s: 100.0 if now_s < 300 else 2000.0, most=8)
    simulation = Simulation(RULES, hot, cold, budget=shared(lend=True))
    simulation.run(300)
    assert (hot.target, cold.target) == (7, 1)
    simulation.run(120)
    assert (hot.target, cold.target) == (5, 3)


def test_what_a_path_holds_is_not_lent_while_its_load_is_unknown() -> None:
    hot = Engines(lambda now_s: 9000.0, most=8)
    cold = Engines(lambda now_s: 2000.0, most=8, running=3)
    simulation = Simulation(RULES, hot, cold, budget=shared(lend=True), silent=lambda now_s: now_s > 60)
    simulation.run(3600)
    assert hot.target + cold.target <= 8
    assert cold.target >= 3
