"""A simulated fleet under the policy: it grows at once, shrinks when the rest can carry the load, and keeps still."""

from __future__ import annotations

import math
import random

import pytest

from app.config.scaling import CollapseConfig, ForecastConfig, ScalingConfig
from app.decisions.scaling import ScalingReason
from tests.unit.app.decisions.simulated_fleet import CAPACITY, COLD, HOT, TOKENS_PER_REQUEST, Engines, Simulation

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NO_FORECAST = ScalingConfig(forecast=ForecastConfig(enabled=False))


def steady(utilization: float, replicas: int = 1, noise: float = 0.0, seed: int = 0):
    chance = random.Random(seed)
    return lambda now_s: max(0.0, utilization * replicas * CAPACITY * chance.gauss(1, noise))


def fallen_to(hit_ratio: float):
    """From 0.9 after an hour, as a ratio over the last minute tells it."""
    return lambda now_s: 0.9 - (0.9 - hit_ratio) * min(1.0, max(0.0, (now_s - HOUR_S) / MINUTE_S))


@pytest.mark.parametrize("replicas", [1, 2, 4, 7])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_constant_load_of_70_percent_makes_at_most_one_change_in_20_minutes(replicas: int, noise: float) -> None:
    for seed in range(3):
        hot = Engines(steady(0.7, replicas, noise, seed), running=replicas)
        Simulation(ScalingConfig(capacity_tokens_per_s=CAPACITY), hot).run(20 * MINUTE_S)
        assert len(hot.targets) <= 1, (seed, hot.targets)


def test_load_around_a_limit_does_not_swing_the_fleet_for_hours() -> None:
    hot = Engines(steady(0.75, 4, noise=0.5), running=4)
    simulation = Simulation(ScalingConfig(capacity_tokens_per_s=CAPACITY), hot)
    simulation.run(6 * HOUR_S)
    assert len(hot.targets) <= 6, hot.targets


def test_a_step_is_followed_at_once_and_work_that_waited_is_done_soon() -> None:
    hot = Engines(lambda now_s: 300.0 if now_s < 600 else 3000.0)
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(615)
    assert hot.target >= 3
    assert hot.running == 1
    simulation.run(300)
    assert hot.running >= 4
    assert hot.backlog == 0


def test_the_replicas_that_are_coming_count_and_are_not_asked_for_twice() -> None:
    """They take ten minutes to start while work piles up: still only what arrives asks for replicas."""
    hot = Engines(lambda now_s: 2000.0, start_s=600.0, most=20)
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(590)
    assert hot.target == math.ceil(2000 / (0.75 * CAPACITY))
    assert simulation.decisions[-1].reason is ScalingReason.WARMING


def test_a_spike_grows_the_fleet_and_it_shrinks_again() -> None:
    hot = Engines(lambda now_s: 3000.0 if 600 < now_s < 660 else 300.0)
    Simulation(ScalingConfig(), hot).run(HOUR_S)
    assert max(hot.targets) >= 2
    assert hot.target == 1
    peak = hot.targets.index(max(hot.targets))
    assert hot.targets[peak:] == sorted(hot.targets[peak:], reverse=True)


def test_queued_work_alone_adds_a_replica_where_the_rest_would_not_finish_it_in_time() -> None:
    hot = Engines(lambda now_s: 700.0)
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(60)
    hot.backlog = 100_000.0
    simulation.run(5)
    assert hot.target == 4  # 700/s and what 90 s leave of it over 30 s
    assert ScalingReason.QUEUE in {decision.reason for decision in simulation.decisions}


def test_after_the_load_has_ended_the_fleet_goes_to_its_floor_once_the_window_has_passed() -> None:
    hot = Engines(lambda now_s: 3000.0 if now_s < HOUR_S else 0.0, least=2, running=5)
    simulation = Simulation(ScalingConfig(), hot)
    simulation.run(HOUR_S + 9 * MINUTE_S)
    assert hot.target >= 4
    simulation.run(4 * MINUTE_S)
    assert hot.target == 2


def test_a_replica_leaves_only_if_the_rest_stays_under_the_target() -> None:
    """0.55 * 4 / 3 is 0.73: under 0.75, but not by the margin."""
    held = Engines(steady(0.55, 4), running=4)
    Simulation(NO_FORECAST, held).run(HOUR_S)
    assert held.targets == []
    left = Engines(steady(0.45, 4), running=4)
    Simulation(NO_FORECAST.model_copy(update={"capacity_tokens_per_s": CAPACITY}), left).run(HOUR_S)
    assert left.targets == [3]


def test_a_day_is_served_without_waiting_and_the_second_one_ahead_of_its_demand() -> None:
    hot = Engines(lambda now_s: 2600 - 2400 * math.cos(2 * math.pi * now_s / DAY_S), start_s=300.0)
    simulation = Simulation(ScalingConfig(capacity_tokens_per_s=CAPACITY), hot, step_s=5.0)
    simulation.run(2 * DAY_S)
    assert hot.longest_wait_s < 1
    assert len(hot.targets) <= 2 * 2 * 6  # up and down, once per replica and day
    assert {ScalingReason.FORECAST, ScalingReason.CONSOLIDATION} <= {each.reason for each in simulation.decisions}


def test_a_collapsed_cache_under_flat_demand_adds_nothing() -> None:
    """The same requests cost three times as much: more replicas would hold less of the cache each."""
    hot = Engines(
        lambda now_s: 600.0 if now_s < HOUR_S else 1800.0,
        hit_ratio=fallen_to(0.4),
        requests_per_s=lambda now_s: 2.0,
    )
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(HOUR_S + 20 * MINUTE_S)
    assert hot.targets == []
    assert simulation.decisions[-1].reason is ScalingReason.COLLAPSE_HOLD


def test_a_collapse_that_lasts_is_the_new_usual() -> None:
    hot = Engines(
        lambda now_s: 600.0 if now_s < HOUR_S else 1800.0,
        hit_ratio=fallen_to(0.4),
        requests_per_s=lambda now_s: 2.0,
    )
    rules = NO_FORECAST.model_copy(update={"collapse": CollapseConfig(hold_s=300)})
    Simulation(rules, hot).run(HOUR_S + 10 * MINUTE_S)
    assert hot.target >= 3


def test_a_falling_hit_ratio_adds_a_replica_when_more_requests_come() -> None:
    hot = Engines(
        steady(0.3),
        hit_ratio=fallen_to(0.6),
        requests_per_s=lambda now_s: 2.0 if now_s < HOUR_S else 4.0,
    )
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(HOUR_S + 90)
    assert hot.targets == [2]
    assert ScalingReason.HIT_RATIO in {decision.reason for decision in simulation.decisions}


def test_full_caches_add_replicas_while_the_engines_still_keep_up() -> None:
    hot = Engines(steady(0.4, 2), running=2, kv_usage=lambda now_s: 0.5 if now_s < 300 else 0.9)
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(310)
    assert hot.target == 3  # 2 * 0.9 at 0.7 each
    assert hot.longest_wait_s == 0
    assert ScalingReason.CACHE_PRESSURE in {decision.reason for decision in simulation.decisions}


def test_lost_reports_hold_the_fleet_and_are_no_zero() -> None:
    hot = Engines(steady(0.7, 4), running=4)
    simulation = Simulation(ScalingConfig(), hot, silent=lambda now_s: now_s > 600)
    simulation.run(2 * HOUR_S)
    assert hot.targets == []
    assert simulation.decisions[-1].reason is ScalingReason.STALE_HOLD


def test_the_window_begins_anew_after_an_outage() -> None:
    hot = Engines(steady(0.1, 4), running=4)
    simulation = Simulation(NO_FORECAST, hot, silent=lambda now_s: 500 < now_s < 560)
    simulation.run(1100)
    assert hot.targets == []
    simulation.run(120)
    assert hot.target < 4


def test_a_dry_run_reports_and_changes_nothing() -> None:
    hot = Engines(lambda now_s: 3000.0)
    simulation = Simulation(ScalingConfig(dry_run=True), hot)
    simulation.run(120)
    assert hot.targets == []
    assert simulation.decisions[-1].desired_replicas >= 4


def test_answers_that_turn_out_short_are_not_scaled_for() -> None:
    """Clients allow three times the tokens that answers take."""
    hot = Engines(steady(0.7, 4), running=4, most=20, expected_ratio=3.0)
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(20 * MINUTE_S)
    demand = simulation.decisions[-1].details["demand_tokens_per_s"]
    assert demand == pytest.approx(0.7 * 4 * CAPACITY, rel=0.05)


def test_a_small_batch_that_keeps_an_engine_busy_does_not_make_it_look_full() -> None:
    hot = Engines(steady(0.5))
    simulation = Simulation(NO_FORECAST, hot)
    simulation.run(HOUR_S)
    assert simulation.decisions[-1].details["capacity_tokens_per_s"] < 0.6 * CAPACITY
    assert hot.targets == []


def test_details_say_what_the_decision_was_made_from() -> None:
    hot = Engines(steady(0.9), requests_per_s=lambda now_s: 0.9 * CAPACITY / TOKENS_PER_REQUEST)
    simulation = Simulation(ScalingConfig(capacity_tokens_per_s=CAPACITY), hot)
    simulation.run(25)
    first = next(decision for decision in simulation.decisions if decision.reason is ScalingReason.DEMAND)
    assert first.path is HOT
    assert first.desired_replicas == 2
    assert first.details["demand_tokens_per_s"] == pytest.approx(900)
    assert first.details["running"] == 1
    assert COLD in simulation.engines
