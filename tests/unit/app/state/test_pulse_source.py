"""Busy, an engine speaks ten times per second; quiet, it says that it lives; and what it says adds up."""

from __future__ import annotations

from app.state.block_ledger import BlockLedger
from app.state.pulse import ReplicaLoad
from app.state.pulse_source import HEARTBEAT_S, MIN_INTERVAL_S, PulseSource
from tests.fake_engine_cache import HASHER, FakeEngineCache


class Engine:
    """A source with the cache and the load that it tells of."""

    def __init__(self) -> None:
        self.cache = FakeEngineCache()
        self.load = ReplicaLoad()
        self.ledger = BlockLedger(HASHER, 1000)
        self.source = PulseSource(self.ledger, "first life", lambda: self.load)

    def compute(self, *tokens: int) -> None:
        self.cache.compute(tokens)
        self.ledger.apply(self.cache.take_batch())


def test_the_first_change_after_a_quiet_time_is_told_at_once_and_the_next_after_the_interval() -> None:
    engine = Engine()
    assert engine.source.pulse_if_due(0.0)
    engine.compute(1, 2, 3, 4)
    first = engine.source.pulse_if_due(0.3)
    assert first is not None and first.change.stored == tuple(HASHER.prompt([1, 2, 3, 4]))
    engine.compute(5, 6, 7, 8)
    assert engine.source.pulse_if_due(0.3 + MIN_INTERVAL_S * 0.9) is None
    second = engine.source.pulse_if_due(0.3 + MIN_INTERVAL_S * 1.1)
    assert second is not None and second.change.stored == tuple(HASHER.prompt([5, 6, 7, 8]))
    assert second.sequence == first.sequence + 1


def test_a_changed_load_is_told_and_an_unchanged_one_is_not() -> None:
    engine = Engine()
    engine.source.pulse_now(0.0)
    assert engine.source.pulse_if_due(0.2) is None
    engine.load = ReplicaLoad(waiting_requests=1)
    pulse = engine.source.pulse_if_due(0.2)
    assert pulse is not None and pulse.load.waiting_requests == 1


def test_a_quiet_engine_sends_heartbeats() -> None:
    engine = Engine()
    engine.source.pulse_now(0.0)
    assert engine.source.pulse_if_due(HEARTBEAT_S * 0.9) is None
    assert engine.source.pulse_if_due(HEARTBEAT_S) is not None


def test_it_asks_to_be_woken_often_enough_for_all_that() -> None:
    engine = Engine()
    for now_s in (0.0, 0.04, 0.1, 7.0):
        assert 0 < engine.source.wake_in_s(now_s) <= MIN_INTERVAL_S
    engine.source.pulse_now(10.0)
    assert 0 < engine.source.wake_in_s(10.04) <= MIN_INTERVAL_S - 0.04 + 1e-9


def test_a_snapshot_is_all_that_was_told_up_to_its_sequence() -> None:
    engine = Engine()
    engine.compute(1, 2, 3, 4)
    engine.source.pulse_now(0.0)
    engine.compute(5, 6, 7, 8)
    last = engine.source.pulse_now(0.1)
    snapshot = engine.source.snapshot()
    assert set(memoryview(snapshot.hashes).cast("Q")) == engine.cache.held
    assert (snapshot.incarnation, snapshot.sequence) == (last.incarnation, last.sequence)
