"""Who waits, where, for how long, and what the refused are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decisions.admission import Action, Guard, Placement
from app.requests import Outcome, Refusal, RequestPath
from tests.fakes import FakeClock
from tests.unit.app.decisions.guards import COLD, HOT, WARM, admit, guard_of, nothing_is_held, report, started


def moved(guard: Guard, path: RequestPath, waiting: int) -> bool:
    """Whether a request leaves the hot engines while `waiting` wait in them."""
    report(guard, HOT, waiting_requests=waiting)
    admission = admit(guard, path)
    assert admission.reservation is not None
    admission.reservation.release()
    return admission.decision.reason is Placement.SPILLED


def test_warm_moves_away_from_a_queue_that_stays_crowded_and_back_with_hysteresis() -> None:
    clock = FakeClock()
    guard = guard_of(clock, queues={"crowded_after_s": 1})
    report(guard, COLD)
    found = []
    for waiting in (0, 7, 8, 6, 5, 4, 5, 7, 8, 8):
        clock.advance(1.0)
        found.append(moved(guard, WARM, waiting))
    assert found == [False, False, False, True, True, False, False, False, False, True]


@given(st.integers(8, 500), st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_a_burst_moves_nobody_however_many_come_and_a_lasting_queue_does(
    burst: int, lasts_s: float, after_s: float
) -> None:
    clock = FakeClock(0.0)
    guard = guard_of(clock, queues={"crowded_after_s": after_s})
    report(guard, COLD)
    began_s = clock()
    while clock() < lasts_s:
        assert moved(guard, HOT, burst) == (clock() - began_s >= after_s)
        clock.advance(0.1)
    assert not moved(guard, HOT, 0)
    assert not moved(guard, HOT, burst)  # each burst is given its time


def test_crowded_engines_lend_nothing_from_the_first_moment() -> None:
    guard = guard_of(FakeClock(), borrowing={"failover": 1.0})
    report(guard, HOT, slots=0)
    report(guard, COLD, waiting_requests=8)
    assert admit(guard, HOT).decision.reason is Placement.HOME


def test_a_freed_slot_goes_to_the_most_urgent_who_waits() -> None:
    guard = guard_of(FakeClock())
    report(guard, HOT, slots=1)
    running = started(guard, HOT)
    warm, hot = admit(guard, WARM).reservation, admit(guard, HOT).reservation
    assert guard.ready() == []
    running.release(Outcome.ANSWERED)
    assert guard.ready() == [hot]
    assert guard.ready() == []
    assert hot is not None
    hot.release(Outcome.ANSWERED)
    assert guard.ready() == [warm]


def test_slots_that_other_ingress_replicas_use_are_not_given_twice() -> None:
    guard = guard_of(FakeClock())
    held = started(guard, COLD)
    report(guard, COLD, slots=10, running_requests=9)
    assert admit(guard, COLD).decision.action is Action.START
    assert admit(guard, COLD).decision.action is Action.WAIT
    held.release()  # a slot of ours is free before any report says so
    assert len(guard.ready()) == 1


def test_a_full_queue_refuses_and_says_when_it_will_have_drained() -> None:
    clock = FakeClock()
    queues = {"cold": {"max_requests": 40, "max_tokens": 10**6}}
    guard = guard_of(clock, queues=queues)
    report(guard, COLD, slots=1)
    for _ in range(300):  # ten answers a second
        running = started(guard, COLD)
        clock.advance(0.1)
        running.release(Outcome.ANSWERED)
    started(guard, COLD)
    for _ in range(40):
        assert admit(guard, COLD).decision.action is Action.WAIT
    refused = admit(guard, COLD).decision
    assert (refused.action, refused.reason) == (Action.REFUSE, Refusal.QUEUE_FULL)
    assert refused.retry_after_s == pytest.approx(4.0, rel=0.15)


def test_a_full_cache_says_when_it_will_have_drained() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    for _ in range(300):  # 500 tokens a second
        running = started(guard, COLD, prompt=50)
        clock.advance(0.1)
        running.release(Outcome.ANSWERED)
    report(guard, COLD, kv_usage_ratio=0.95)
    refused = admit(guard, COLD, prompt=3000).decision
    assert refused.retry_after_s == pytest.approx((0.95 - 0.85) * 10_000 / 500, rel=0.15)


def test_a_long_prefill_queue_says_when_enough_of_it_will_have_been_computed() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD)
    first = started(guard, COLD, prompt=1000)
    clock.advance(2.0)
    first.first_token()  # 500 tokens a second
    first.release(Outcome.ANSWERED)
    report(guard, COLD, queued_prefill_tokens=20_000)  # 40 s of them
    refused = admit(guard, COLD, prompt=3000).decision
    assert refused.reason is Refusal.PREFILL_QUEUE_LONG
    assert refused.retry_after_s == pytest.approx(40.0 - 25.0)
    report(guard, COLD, queued_prefill_tokens=round(20_000 - 500 * refused.retry_after_s))
    assert admit(guard, COLD, prompt=3000).decision.action is Action.START


def test_a_preemption_storm_says_when_it_will_have_faded_if_it_is_over() -> None:
    clock = FakeClock()
    guard = guard_of(clock, watermarks={"shed_after_s": 1000})
    for tenth in range(100):  # ten a second
        report(guard, COLD, preemptions=tenth)
        clock.advance(0.1)
    refused = admit(guard, COLD, prompt=3000).decision
    assert refused.reason is Refusal.PREEMPTION_STORM
    assert refused.retry_after_s is not None
    for _ in range(round(refused.retry_after_s * 10) + 1):
        clock.advance(0.1)
        report(guard, COLD, preemptions=99)
    assert admit(guard, COLD, prompt=3000).decision.action is Action.START


@pytest.mark.parametrize("idle_s", [0.0, 10_000.0])
def test_without_a_known_drain_the_wait_is_a_guess_within_bounds(idle_s: float) -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD, prompt=50).release(Outcome.ANSWERED)
    clock.advance(idle_s)
    report(guard, COLD, kv_usage_ratio=0.95)
    retry_after_s = admit(guard, COLD, prompt=3000).decision.retry_after_s
    assert retry_after_s is not None
    assert 1.0 <= retry_after_s <= 60.0


def test_the_clients_own_deadline_bounds_its_wait() -> None:
    clock = FakeClock()
    guard = guard_of(clock, queues={"deadline_s": 30.0})
    report(guard, COLD, slots=1)
    started(guard, COLD)
    hasty, patient = admit(guard, COLD, timeout_s=2.0).reservation, admit(guard, COLD).reservation
    clock.advance(2.0)
    assert guard.expire() == [hasty]
    clock.advance(28.0)
    assert guard.expire() == [patient]


def test_each_path_waits_as_long_as_its_own_deadline_says_or_else_the_common_one() -> None:
    clock = FakeClock(0.0)
    guard = guard_of(clock, queues={"deadline_s": 30.0, "hot": {"deadline_s": 5.0}})
    for engines in (HOT, COLD):
        report(guard, engines, slots=0)
    ends_s = {}
    waiting = {admit(guard, path, may_move=False).reservation: path for path in RequestPath}
    while len(ends_s) < len(RequestPath):
        clock.advance(1.0)
        ends_s |= {waiting[reservation]: clock() for reservation in guard.expire()}
    assert ends_s == {HOT: 5.0, WARM: 30.0, COLD: 30.0}


def test_a_hot_request_waits_only_as_long_as_its_own_prompt_leaves_time_for() -> None:
    """500 tokens a second, as a first request has shown: of ten seconds a prompt of 1,000 tokens leaves eight."""
    clock = FakeClock()
    guard = guard_of(clock, queues={"hot": {"first_token_s": 10, "deadline_s": None}})
    report(guard, HOT, slots=1)
    running = started(guard, HOT, prompt=500)
    clock.advance(1.0)
    running.first_token()
    waiting = admit(guard, HOT, prompt=1000).reservation
    patient = admit(guard, HOT, prompt=1000, timeout_s=30.0).reservation
    clock.advance(7.9)
    assert guard.expire() == []
    clock.advance(0.2)
    assert guard.expire() == [waiting]
    clock.advance(19.9)
    assert guard.expire() == [patient]
    running.release(Outcome.ANSWERED)
    assert nothing_is_held(guard)


def test_a_prompt_whose_first_token_has_come_delays_nobody() -> None:
    clock = FakeClock()
    guard = guard_of(clock, queues={"hot": {"first_token_s": 1}}, borrowing={"hot_on_cold": 0})
    report(guard, HOT)
    first = started(guard, HOT, prompt=500)
    clock.advance(1.0)
    first.first_token()
    report(guard, HOT)
    second = started(guard, HOT, prompt=600)
    assert admit(guard, HOT, prompt=600).decision.reason is Refusal.PREFILL_QUEUE_LONG
    second.first_token()
    report(guard, HOT)
    assert admit(guard, HOT, prompt=600).decision.action is Action.START
