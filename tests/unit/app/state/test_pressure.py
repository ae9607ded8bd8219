"""What replicas report becomes a level; what they do not report becomes none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.admission import AdmissionConfig, WatermarksConfig
from app.state.pressure import Pressure, PressureGauge, ReplicaReading, Signal, water_level
from app.state.pressure_monitor import PressureMonitor
from app.state.pulse import ReplicaLoad
from app.state.watermarks import Level
from tests.fakes import FakeClock

WATERMARKS = WatermarksConfig()
LIGHT = Pressure(kv_usage_ratio=0.1, queued_prefill_s=None, preemptions_per_s=0.0)


def pressure(kv: float = 0.1, prefill_s: float | None = None, preemptions: float = 0.0) -> Pressure:
    return Pressure(kv, prefill_s, preemptions)


def reading(name: str = "a", age_s: float = 0.1, debit: int = 0, **load: float) -> ReplicaReading:
    """Of a replica with 100 blocks."""
    report = ReplicaLoad(**{"kv_blocks": 100, **load})  # type: ignore[arg-type]  # counts are whole in these tests
    return ReplicaReading(name, report, age_s, kv_debit_tokens=debit, prefill_debit_tokens=debit)


def monitor(clock: FakeClock) -> PressureMonitor:
    return PressureMonitor(AdmissionConfig(), block_size=10, stale_after_s=1.0, clock=clock)


@pytest.mark.parametrize(
    ("levels", "poured", "level"),
    [([0.5], 0.25, 0.75), ([0.0, 1.0], 0.5, 0.5), ([0.0, 1.0], 1.0, 1.0), ([0.0, 1.0], 2.0, 1.5), ([0.2, 0.2], 0, 0.2)],
)
def test_what_is_poured_fills_the_lowest_first(levels: list[float], poured: float, level: float) -> None:
    assert water_level(levels, poured) == pytest.approx(level)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(sorted), st.floats(0, 8))
def test_nothing_of_what_is_poured_is_lost(levels: list[float], poured: float) -> None:
    level = water_level(levels, poured)
    assert sum(max(0.0, level - before) for before in levels) == pytest.approx(poured, abs=1e-9)


@pytest.mark.parametrize(
    ("seen", "signal"),
    [
        (pressure(kv=0.92), Signal.KV_USAGE_RATIO),
        (pressure(prefill_s=40.0), Signal.QUEUED_PREFILL_S),
        (pressure(preemptions=3.0), Signal.PREEMPTIONS_PER_S),
        (pressure(kv=0.86, preemptions=3.0), Signal.PREEMPTIONS_PER_S),
    ],
)
def test_the_worst_signal_sets_the_level_and_is_named(seen: Pressure, signal: Signal) -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(seen, 0.0) is Level.REFUSE_LONG
    assert gauge.signal is signal


def test_compression_that_lasts_turns_into_shedding_and_ends_with_it() -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(pressure(kv=0.96), 0.0) is Level.COMPRESS
    assert gauge.update(pressure(kv=0.96), 4.9) is Level.COMPRESS
    assert gauge.update(pressure(kv=0.92), 5.0) is Level.SHED  # still within the hysteresis of compress
    assert gauge.update(pressure(kv=0.89), 6.0) is Level.REFUSE_LONG
    assert gauge.update(pressure(kv=0.96), 7.0) is Level.COMPRESS


def test_the_level_holds_while_nothing_is_known_and_then_becomes_an_alert() -> None:
    gauge = PressureGauge(WATERMARKS)
    gauge.update(pressure(kv=0.92), 0.0)
    assert gauge.update(None, 1.0) is Level.REFUSE_LONG
    assert gauge.update(None, 10.9) is Level.REFUSE_LONG
    assert gauge.update(None, 11.0) is Level.ALERT
    assert gauge.signal is None
    assert gauge.update(LIGHT, 12.0) is Level.NORMAL


def test_a_gauge_that_never_heard_anything_is_not_pressed_but_alerts() -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(None, 0.0) is Level.NORMAL
    assert gauge.update(None, 20.0) is Level.ALERT


def test_a_paths_pressure_is_that_of_its_least_loaded_replica() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading("full", kv_usage_ratio=0.99), reading("free", kv_usage_ratio=0.2)], 0)
    assert seen.level is Level.NORMAL
    assert seen.replica_levels() == {"full": Level.COMPRESS, "free": Level.NORMAL}


def test_a_stale_replica_is_neither_free_nor_full() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading("full", kv_usage_ratio=0.99), reading("stale", age_s=1.1, kv_usage_ratio=0.0)], 0)
    assert seen.level is Level.COMPRESS
    seen.observe([reading("free", kv_usage_ratio=0.5), reading("stale", age_s=1.1, kv_usage_ratio=1.0)], 0)
    assert seen.pressure() == pressure(kv=0.5)


def test_debits_of_a_replica_count_as_usage() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading(kv_usage_ratio=0.8, debit=110)], 0)  # of 1,000 tokens
    assert seen.level is Level.REFUSE_LONG


def test_what_is_let_in_between_two_observations_counts_at_once_and_until_it_ends() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading(kv_usage_ratio=0.5)], 0)
    at = seen.pour(460)
    seen.update(0)
    assert seen.level is Level.COMPRESS
    seen.unpour(460, at)
    seen.update(0)
    assert seen.level is Level.NORMAL


def test_a_debit_that_an_observation_replaced_is_not_given_back_again() -> None:
    seen = monitor(FakeClock())
    at = seen.pour(460)
    seen.observe([reading(kv_usage_ratio=0.5)], 0)
    seen.unpour(460, at)
    assert seen.pressure() == pressure(kv=0.5)


def test_a_burst_spreads_over_the_replicas() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading(name, kv_usage_ratio=0.5) for name in "abcd"], 0)
    seen.pour(1000)
    found = seen.pressure()
    assert found is not None
    assert found.kv_usage_ratio == pytest.approx(0.75)


def test_a_preemption_storm_is_seen_though_the_cache_looks_fine() -> None:
    clock = FakeClock()
    seen = monitor(clock)
    for tenth in range(40):
        clock.advance(0.1)
        seen.observe([reading(kv_usage_ratio=0.32, preemptions=tenth)], 0)
    assert (seen.level, seen.signal) == (Level.COMPRESS, Signal.PREEMPTIONS_PER_S)
    for _ in range(600):
        clock.advance(0.1)
        seen.observe([reading(kv_usage_ratio=0.32, preemptions=39)], 0)
    assert seen.level is Level.NORMAL


def test_preemptions_before_this_process_looked_are_history() -> None:
    clock = FakeClock()
    seen = monitor(clock)
    for _ in range(10):
        clock.advance(0.1)
        seen.observe([reading(preemptions=100_000)], 0)
    assert seen.level is Level.NORMAL


def test_saturation_by_prefill_is_seen_at_a_low_kv_usage() -> None:
    seen = monitor(FakeClock())
    seen.speed.add(6000, 10.0, 1000.0)
    seen.observe([reading(kv_usage_ratio=0.32, queued_prefill_tokens=24_000)], 0)
    assert (seen.level, seen.signal) == (Level.REFUSE_LONG, Signal.QUEUED_PREFILL_S)


def test_queued_prefill_of_unknown_speed_refuses_nobody() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading(queued_prefill_tokens=10**9)], 0)
    assert seen.level is Level.NORMAL


def test_a_replica_that_left_leaves_nothing_behind() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading("old", kv_usage_ratio=0.99)], 0)
    seen.observe([reading("new", kv_usage_ratio=0.1)], 0)
    assert seen.replica_levels() == {"new": Level.NORMAL}


def test_a_replica_of_unknown_cache_size_still_tells_its_usage() -> None:
    seen = monitor(FakeClock())
    seen.observe([ReplicaReading("a", ReplicaLoad(kv_usage_ratio=0.92), 0.0, kv_debit_tokens=500)], 0)
    seen.pour(500)
    assert seen.pressure() == pressure(kv=0.92)
