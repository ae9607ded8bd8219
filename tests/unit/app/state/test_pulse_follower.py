"""A view is told what joins on to what it knows; out of step it is told to expect no hit, then everything anew."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.state.block_ledger import BlockLedger
from app.state.pulse import CacheChange, Pulse, ReplicaLoad, Snapshot
from app.state.pulse_follower import MAX_WAITING_PULSES, FollowerCounts, PulseFollower
from app.state.pulse_source import PulseSource
from tests.fake_engine_cache import HASHER, FakeEngineCache, cache_actions, perform
from tests.fakes import RecordingView

LOAD = ReplicaLoad(running_requests=1)


def pulse(sequence: int, *stored: int, incarnation: str = "one") -> Pulse:
    return Pulse(incarnation, sequence, CacheChange(stored=stored), LOAD)


def snapshot(sequence: int, *held: int, incarnation: str = "one") -> Snapshot:
    return Snapshot(incarnation, sequence, array("Q", held).tobytes(), LOAD)


def following(sequence: int = 1, *held: int) -> tuple[PulseFollower, RecordingView]:
    view = RecordingView()
    follower = PulseFollower("a", view, FollowerCounts())
    follower.on_snapshot(snapshot(sequence, *held))
    return follower, view


def test_nothing_reaches_the_view_before_the_first_snapshot() -> None:
    view = RecordingView()
    PulseFollower("a", view, FollowerCounts()).on_pulse(pulse(1, 7))
    assert view.held == {} and view.load == {}


def test_pulses_that_came_before_the_snapshot_are_applied_on_top_of_it_as_far_as_they_are_newer() -> None:
    view = RecordingView()
    follower = PulseFollower("a", view, FollowerCounts())
    for sequence, stored in ((1, 10), (2, 20), (3, 30)):
        follower.on_pulse(pulse(sequence, stored))
    follower.on_snapshot(snapshot(2, 11, 22))
    assert view.held["a"] == {11, 22, 30}
    assert follower.in_step


def test_a_gap_clears_the_view_until_the_snapshot() -> None:
    follower, view = following(1, 10)
    follower.on_pulse(pulse(3, 30))
    assert view.held["a"] == set()
    assert view.load["a"] == LOAD
    assert not follower.in_step
    follower.on_snapshot(snapshot(3, 10, 20, 30))
    assert view.held["a"] == {10, 20, 30}
    assert follower.counts.gaps == 1


def test_a_gap_between_the_snapshot_and_the_waiting_pulses_needs_another_snapshot() -> None:
    view = RecordingView()
    follower = PulseFollower("a", view, FollowerCounts())
    follower.on_pulse(pulse(9, 90))
    follower.on_snapshot(snapshot(5, 50))
    assert not follower.in_step
    follower.on_snapshot(snapshot(9, 50, 90))
    assert follower.in_step and view.held["a"] == {50, 90}


def test_an_old_pulse_changes_nothing() -> None:
    follower, view = following(5, 10)
    follower.on_pulse(pulse(5, 66))
    follower.on_pulse(pulse(2, 77))
    assert view.held["a"] == {10} and follower.in_step
    assert follower.counts.outdated == 2


def test_another_incarnation_is_another_cache() -> None:
    follower, view = following(5, 10)
    follower.on_pulse(pulse(6, 60, incarnation="two"))
    assert view.held["a"] == set() and "a" not in view.load
    follower.on_snapshot(snapshot(6, 60, incarnation="two"))
    follower.on_pulse(pulse(7, 70, incarnation="two"))
    assert view.held["a"] == {60, 70}
    assert follower.counts.restarts == 1


def test_a_lost_connection_predicts_no_hit_and_pulses_that_come_late_do_not_revive_it() -> None:
    follower, view = following(1, 10)
    follower.on_disconnected()
    follower.on_pulse(pulse(2, 20))
    assert view.held["a"] == set() and "a" not in view.load


def test_what_waits_for_a_snapshot_is_bounded() -> None:
    view = RecordingView()
    follower = PulseFollower("a", view, FollowerCounts())
    for sequence in range(1, MAX_WAITING_PULSES + 11):
        follower.on_pulse(pulse(sequence, sequence))
    follower.on_snapshot(snapshot(0))
    assert not follower.in_step  # the first ten are gone


deliveries = st.lists(st.tuples(cache_actions, st.sampled_from(["arrives", "lost", "twice", "reconnect"])), max_size=40)


@given(deliveries)
def test_a_lossy_feed_never_claims_what_was_not_told_and_ends_at_the_truth(
    steps: list[tuple[tuple[Any, ...], str]],
) -> None:
    cache, ledger, view = FakeEngineCache(), BlockLedger(HASHER, 10_000), RecordingView()
    source = PulseSource(ledger, "one", ReplicaLoad)
    follower = PulseFollower("a", view, FollowerCounts())
    for now_s, (action, fate) in enumerate([*steps, (("tell",), "arrives"), (("tell",), "arrives")]):
        perform(cache, action)
        ledger.apply(cache.take_batch())
        told = source.pulse_now(now_s)
        if fate == "reconnect":
            follower.on_disconnected()
        for _ in range({"lost": 0, "twice": 2}.get(fate, 1)):
            follower.on_pulse(told)
        if follower.in_step and fate != "lost":
            assert view.held["a"] == cache.held
        elif not follower.in_step and now_s % 2:  # a snapshot, sometimes late
            assert not view.held.get("a")
            follower.on_snapshot(source.snapshot())
            assert view.held["a"] == cache.held
    if not follower.in_step:
        follower.on_snapshot(source.snapshot())
    assert view.held["a"] == cache.held
