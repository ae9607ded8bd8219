"""Exhausted caches and failing engines: whom to abort, where to go, how to come back."""

from __future__ import annotations

from app.decisions.admission import Guard, Placement
from app.requests import Outcome, Refusal, RequestPath
from app.state.engines import Reservation
from tests.fakes import FakeClock
from tests.unit.app.decisions.guards import COLD, HOT, admit, guard_of, nothing_is_held, report, started


def exhausted(guard: Guard, clock: FakeClock, seconds: float) -> list[Reservation]:
    named = []
    for _ in range(round(seconds * 10)):
        report(guard, COLD, kv_usage_ratio=0.99, waiting_requests=1)
        named += guard.victims()
        clock.advance(0.1)
    return named


def test_sustained_exhaustion_names_the_oldest_of_the_least_urgent_one_at_a_time() -> None:
    clock = FakeClock()
    guard = guard_of(clock, breaker={"abort_after_s": 15, "abort_every_s": 5})
    urgent = started(guard, COLD, priority=210)
    oldest = started(guard, COLD)
    younger = started(guard, COLD)
    assert exhausted(guard, clock, 15.0) == []
    assert exhausted(guard, clock, 5.0) == [oldest]
    assert exhausted(guard, clock, 5.0) == [younger]
    assert exhausted(guard, clock, 5.0) == [urgent]
    assert exhausted(guard, clock, 60.0) == []  # each is named once


def test_exhaustion_that_ends_in_between_aborts_nobody() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD)
    for _ in range(10):
        assert exhausted(guard, clock, 10.0) == []
        report(guard, COLD, kv_usage_ratio=0.7)
        assert guard.victims() == []


def test_a_full_cache_that_nobody_waits_for_is_no_exhaustion() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD)
    for _ in range(600):
        report(guard, COLD, kv_usage_ratio=1.0)
        assert guard.victims() == []
        clock.advance(0.1)


def test_nobody_is_aborted_on_stale_reports() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD)
    for _ in range(600):
        report(guard, COLD, age_s=2.0, kv_usage_ratio=1.0, waiting_requests=9)
        assert guard.victims() == []
        clock.advance(0.1)


def fail(guard: Guard, path: RequestPath, times: int) -> None:
    for _ in range(times):
        started(guard, path).release(Outcome.ENGINE_FAILED)


def test_failing_engines_hand_over_and_a_probe_brings_traffic_back() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, HOT)
    report(guard, COLD)
    fail(guard, HOT, 5)
    elsewhere = admit(guard, HOT)
    assert (elsewhere.decision.engines, elsewhere.decision.reason) == (COLD, Placement.FAILOVER)
    clock.advance(5.0)
    probe = started(guard, HOT)
    assert probe.engines.name is HOT
    assert admit(guard, HOT).decision.reason is Placement.FAILOVER  # one probe at a time
    probe.release(Outcome.ANSWERED)
    assert admit(guard, HOT).decision.reason is Placement.HOME


def test_the_first_token_of_a_long_probe_brings_traffic_back_before_its_answer_ends() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    for engines in (HOT, COLD):
        report(guard, engines)
    fail(guard, COLD, 5)
    clock.advance(5.0)
    probe = started(guard, COLD)
    clock.advance(1.0)
    assert admit(guard, COLD).decision.reason is not Placement.HOME
    probe.first_token()
    assert admit(guard, COLD).decision.reason is Placement.HOME
    probe.release(Outcome.CANCELLED)
    assert admit(guard, COLD).decision.reason is Placement.HOME


def test_a_failed_probe_keeps_the_circuit_open() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, HOT)
    fail(guard, HOT, 5)
    clock.advance(5.0)
    fail(guard, HOT, 1)
    refused = admit(guard, HOT).decision  # nothing is known of the cold engines, so nothing is lent
    assert (refused.reason, refused.retry_after_s) == (Refusal.ENGINES_FAILED, 5.0)


def test_no_number_of_client_errors_closes_a_path() -> None:
    guard = guard_of(FakeClock())
    report(guard, HOT)
    for _ in range(1000):
        started(guard, HOT).release(Outcome.CLIENT_ERROR)
    assert admit(guard, HOT).decision.reason is Placement.HOME


def test_those_who_wait_for_engines_that_fail_move_to_what_the_others_lend() -> None:
    clock = FakeClock()
    guard = guard_of(clock, borrowing={"failover": 0.5})
    report(guard, HOT, slots=1)
    report(guard, COLD, slots=4)
    running = started(guard, HOT)
    waiting = [admit(guard, HOT, may_move=number != 1).reservation for number in range(4)]
    report(guard, HOT, slots=0)  # its replica is gone
    running.release(Outcome.ENGINE_FAILED)
    moved = guard.ready()
    assert moved == [waiting[0], waiting[2]]  # half of four slots; the second may not move
    assert all(reservation.engines.name is COLD for reservation in moved)
    assert guard.states()[HOT].waiting == 2
    for reservation in (*moved, *waiting):
        assert reservation is not None
        reservation.release()
    assert nothing_is_held(guard)
