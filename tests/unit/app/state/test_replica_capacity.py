"""What replicas show of their capacity, and how long one takes to come."""

from __future__ import annotations

import pytest

from app.state.replica_capacity import ReplicaCapacity, StartTime
from app.state.scaling_inputs import EngineStats

FULL_AT = 8


def replica(tokens_per_s: float, busy: float = 1.0, running: float = 1.0, waiting: float = 0.0) -> EngineStats:
    return EngineStats(
        kv_usage_ratio=0.1,
        queued_prefill_tokens=0,
        running_sequences=running,
        waiting_sequences=waiting,
        computed_tokens_per_s=tokens_per_s,
        busy_ratio=busy,
        preemptions_per_s=0,
        evicted_blocks_per_s=0,
    )


def after(capacity: ReplicaCapacity, stats: EngineStats, seconds: int = 120) -> float | None:
    for _ in range(seconds):
        capacity.learn([stats], 1.0)
    return capacity.tokens_per_s


def test_nothing_is_known_before_anything_was_computed() -> None:
    capacity = ReplicaCapacity(None, FULL_AT)
    assert after(capacity, replica(0.0, busy=0.0)) is None
    assert not capacity.proven


def test_a_replica_with_few_sequences_shows_a_lower_bound_only() -> None:
    capacity = ReplicaCapacity(None, FULL_AT)
    assert after(capacity, replica(300)) == pytest.approx(300)
    assert not capacity.proven
    assert after(capacity, replica(30)) == pytest.approx(300)


@pytest.mark.parametrize("full", [{"running": 8.0}, {"waiting": 2.0}])
def test_a_full_replica_shows_what_it_can_do_also_when_that_is_less(full: dict[str, float]) -> None:
    capacity = ReplicaCapacity(None, FULL_AT)
    after(capacity, replica(900, **full))
    assert capacity.proven
    assert after(capacity, replica(400, **full)) == pytest.approx(400, rel=0.01)


def test_idle_time_does_not_count() -> None:
    assert after(ReplicaCapacity(None, FULL_AT), replica(400, busy=0.8, running=9)) == pytest.approx(500)


def test_a_mostly_idle_replica_tells_nothing() -> None:
    assert after(ReplicaCapacity(None, FULL_AT), replica(400, busy=0.1, running=9)) is None


def test_what_was_configured_holds_within_a_factor_of_four() -> None:
    capacity = ReplicaCapacity(1000, FULL_AT)
    assert capacity.proven
    assert after(capacity, replica(10, waiting=5)) == 250
    assert after(capacity, replica(90_000, waiting=5)) == 4000


def test_a_start_counts_from_the_first_replica_asked_for_to_the_last_that_came() -> None:
    start = StartTime(90)
    start.observe(0, 0)
    start.observe(2, 10)
    start.observe(1, 30)
    assert start.seconds == 90
    start.observe(0, 40)
    assert start.seconds == 60  # half way to 30


def test_a_replica_that_waited_for_a_machine_does_not_make_starts_look_endless() -> None:
    start = StartTime(90)
    start.observe(1, 0)
    start.observe(0, 100_000)
    assert start.seconds == (90 + 360) / 2
