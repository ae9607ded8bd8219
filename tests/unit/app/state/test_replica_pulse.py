"""Rates of one replica's counters, over the seconds in which it was heard."""

from __future__ import annotations

from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.replica_pulse import WINDOW_TICKS, Lookups, ReplicaPulse, together


def tick(pulse: ReplicaPulse, queries: int, hits: int, age_s: float = 0.1, preemptions: int = 0) -> None:
    load = ReplicaLoad(prefix_query_tokens=queries, prefix_hit_tokens=hits, preemptions=preemptions)
    pulse.tick(ReplicaReading("r", load, age_s), stale_after_s=1.0)


def test_the_ratio_is_of_what_was_looked_up_in_the_window() -> None:
    pulse = ReplicaPulse()
    tick(pulse, 5000, 0)  # before it was followed
    for second in range(1, WINDOW_TICKS + 1):
        tick(pulse, 5000 + 100 * second, 80 * second)
    assert pulse.sample is not None
    assert pulse.sample.hit_ratio == 0.8


def test_without_lookups_there_is_no_ratio() -> None:
    pulse = ReplicaPulse()
    tick(pulse, 100, 50)
    tick(pulse, 100, 50)
    assert pulse.sample is not None
    assert pulse.sample.hit_ratio is None


def test_a_silent_replica_is_stale_and_not_zero() -> None:
    pulse = ReplicaPulse()
    tick(pulse, 0, 0)
    tick(pulse, 100, 50, age_s=1.5)
    assert pulse.sample is None
    assert pulse.lookups == Lookups()


def test_what_counters_did_in_the_silence_belongs_to_no_second() -> None:
    pulse = ReplicaPulse()
    tick(pulse, 0, 0)
    tick(pulse, 0, 0, age_s=9)
    tick(pulse, 10_000, 0, preemptions=50)
    tick(pulse, 10_100, 100, preemptions=51)
    assert pulse.sample is not None
    assert (pulse.sample.hit_ratio, pulse.sample.preemptions_per_s) == (1.0, 1.0)


def test_counters_that_fell_are_those_of_another_engine() -> None:
    pulse = ReplicaPulse()
    tick(pulse, 900, 900)
    tick(pulse, 10, 0)
    tick(pulse, 20, 5)
    assert pulse.lookups == Lookups(10, 5)


def test_a_path_has_the_ratio_of_its_tokens_and_not_the_mean_of_ratios() -> None:
    assert together([Lookups(900, 0), Lookups(100, 100)]).ratio == 0.1
    assert together([]).ratio is None
