"""What replicas report becomes the pressure of a path; what they do not report becomes none."""

from __future__ import annotations

import pytest

from app.config.admission import AdmissionConfig
from app.state.pressure import Pressure, ReplicaReading, Signal
from app.state.pressure_monitor import PressureMonitor
from app.state.pulse import ReplicaLoad
from app.state.watermarks import Level
from tests.fakes import FakeClock


def pressure(kv: float = 0.1, prefill_s: float | None = None, preemptions: float = 0.0) -> Pressure:
    return Pressure(kv, prefill_s, preemptions)


def reading(name: str = "a", age_s: float = 0.1, debit: int = 0, **load: float) -> ReplicaReading:
    """Of a replica with 100 blocks."""
    report = ReplicaLoad(**{"kv_blocks": 100, **load})  # type: ignore[arg-type]  # counts are whole in these tests
    return ReplicaReading(name, report, age_s, kv_debit_tokens=debit, prefill_debit_tokens=debit)


def monitor(clock: FakeClock) -> PressureMonitor:
    return PressureMonitor(AdmissionConfig(), block_size=10, stale_after_s=1.0, clock=clock)


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


def test_the_first_replica_of_a_path_has_been_silent_for_no_time() -> None:
    clock = FakeClock()
    seen = monitor(clock)
    for readings in ([], [ReplicaReading("new", None, float("inf"))]):
        seen.observe(readings, 0)
        clock.advance(9.0)
        seen.update(0)
        assert seen.level is Level.NORMAL
    clock.advance(1.0)
    seen.update(0)
    assert seen.level is Level.ALERT


def test_what_pressed_on_a_path_ends_with_its_last_replica() -> None:
    seen = monitor(FakeClock())
    seen.observe([reading("old", kv_usage_ratio=0.99)], 0)
    seen.observe([], 0)
    seen.observe([ReplicaReading("new", None, float("inf"))], 0)
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
