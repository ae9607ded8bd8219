"""The guard over time, on a simulated clock: engines that fill, drain, fall silent, fail and return."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.config.admission import AdmissionConfig
from app.decisions.admission import Action, Admission, Ask, Guard, Placement
from app.requests import Outcome, Refusal, RequestFeatures, RequestPath
from app.state.engines import Reservation
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.watermarks import Level
from tests.fakes import FakeClock

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
BLOCK_SIZE = {HOT: 16, COLD: 16}
FAR_S = 1e9


def guard_of(clock: FakeClock, **rules: Any) -> Guard:
    return Guard(AdmissionConfig.model_validate(rules), BLOCK_SIZE, stale_after_s=1.0, clock=clock)


def report(guard: Guard, engines: RequestPath, slots: int = 100, age_s: float = 0.0, **load: Any) -> None:
    """One replica with 10,000 tokens of cache tells its load."""
    load = {"kv_blocks": 625, **load}
    guard.observe(engines, [ReplicaReading("only", ReplicaLoad(**load), age_s)], slots)


def ask(path: RequestPath, prompt: int = 10, output: int | None = 10, **given: Any) -> Ask:
    return Ask(RequestFeatures(prompt, output), path, given.pop("priority", path.priority()), **given)


def admit(guard: Guard, path: RequestPath, prompt: int = 10, output: int | None = 10, **given: Any) -> Admission:
    return guard.admit(ask(path, prompt, output, **given))


def started(guard: Guard, path: RequestPath, **given: Any) -> Reservation:
    admission = admit(guard, path, **given)
    assert admission.decision.action is Action.START
    assert admission.reservation is not None
    return admission.reservation


def nothing_is_held(guard: Guard) -> bool:
    return all(
        (state.used_slots, state.waiting, sum(state.lent.values()), state.least_urgent) == (0, 0, 0, None)
        for state in guard.states().values()
    )


# Ten simulated minutes


class SimulatedEngines:
    """Engines of one path: `slots` requests at a time, each for `service_s`. Reports 8 times a second."""

    def __init__(self, name: RequestPath, slots: int, service_s: float) -> None:
        self.name, self.slots, self.service_s = name, slots, service_s
        self.running: list[tuple[float, Reservation]] = []

    def take(self, reservation: Reservation, now_s: float) -> None:
        self.running.append((now_s + self.service_s, reservation))
        assert len(self.running) <= self.slots

    def finish(self, now_s: float) -> list[Reservation]:
        done = [reservation for until_s, reservation in self.running if until_s <= now_s]
        self.running = [(until_s, reservation) for until_s, reservation in self.running if until_s > now_s]
        for reservation in done:
            reservation.release(Outcome.ANSWERED)
        return done


def test_ten_minutes_of_saturated_hot_let_cold_and_warm_progress_and_forget_nobody() -> None:
    """Hot is offered twice what its engines serve (8 a second), warm 1 a second, cold what the cold engines carry."""
    clock = FakeClock(0.0)
    bounds = {"hot": {"max_requests": 64, "max_tokens": 100_000}}
    guard = guard_of(clock, queues={**bounds, "deadline_s": 30.0}, borrowing={"warm_on_cold": 0.0, "hot_on_cold": 0.0})
    engines = {HOT: SimulatedEngines(HOT, 8, service_s=1.0), COLD: SimulatedEngines(COLD, 4, service_s=8.0)}
    offered_s: dict[Reservation, float] = {}
    served, refused, offered = Counter[RequestPath](), Counter[str](), Counter[RequestPath]()
    waits = dict.fromkeys(RequestPath, 0.0)

    def start(reservation: Reservation) -> None:
        engines[reservation.engines.name].take(reservation, clock())
        waits[reservation.path] = max(waits[reservation.path], clock() - offered_s[reservation])

    for tick in range(8 * 600):
        for name, simulated in engines.items():
            served.update(reservation.path for reservation in simulated.finish(clock()))
            report(guard, name, slots=simulated.slots, running_requests=len(simulated.running))
        for late in guard.expire():
            assert clock() - offered_s[late] <= 30.125
            refused[Refusal.DEADLINE_PASSED] += 1
        for reservation in guard.ready():
            start(reservation)
        for path, every_ticks in ((HOT, 1), (HOT, 1), (WARM, 8), (COLD, 20)):
            if tick % every_ticks == 0:
                offered[path] += 1
                admission = admit(guard, path)
                if admission.reservation is None:
                    refused[admission.decision.reason] += 1
                    continue
                offered_s[admission.reservation] = clock()
                if admission.decision.action is Action.START:
                    start(admission.reservation)
        clock.advance(0.125)
    held = sum(len(simulated.running) for simulated in engines.values()) + sum(
        state.waiting for state in guard.states().values()
    )
    assert sum(offered.values()) == sum(served.values()) + sum(refused.values()) + held
    assert served[COLD] >= 0.97 * offered[COLD]
    assert served[WARM] >= 0.9 * offered[WARM]  # aged past newer hot ones
    assert served[HOT] + served[WARM] >= 0.99 * 8 * 600  # the engines were never idle
    assert set(refused) <= {Refusal.QUEUE_FULL, Refusal.DEADLINE_PASSED}
    assert max(waits.values()) <= 30.0


def test_cold_never_takes_what_hot_needs() -> None:
    """Cold is offered far too much and may borrow; hot comes and goes, and always finds its slots."""
    clock = FakeClock()
    guard = guard_of(clock, borrowing={"cold_on_hot": 0.2})
    report(guard, HOT, slots=10)
    report(guard, COLD, slots=2, waiting_requests=20)
    borrowed = [admit(guard, COLD).decision.engines for _ in range(30)].count(HOT)
    assert borrowed == 2
    assert all(admit(guard, HOT).decision.action is Action.START for _ in range(8))
    hot = guard.admit(ask(HOT))
    assert hot.decision.action is Action.WAIT
    assert all(admit(guard, COLD).decision.engines is COLD for _ in range(30))


# Watermarks


def test_usage_that_swings_around_a_watermark_does_not_switch_decisions_on_and_off() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    actions = []
    for tick in range(600):
        report(guard, COLD, kv_usage_ratio=0.91 if tick % 2 else 0.87)
        admission = admit(guard, COLD, prompt=3000)
        actions.append(admission.decision.action)
        if admission.reservation is not None:
            admission.reservation.release()
        clock.advance(0.1)
    assert sum(before is not after for before, after in pairwise(actions)) == 1
    assert actions[-1] is Action.REFUSE


def test_a_burst_is_refused_by_its_own_debits_before_any_report_shows_it() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    decisions = [admit(guard, COLD, prompt=3000).decision for _ in range(100)]
    assert [decision.action for decision in decisions].count(Action.START) == 3  # 9,000 of 10,000 tokens
    assert {decision.reason for decision in decisions[3:]} == {Refusal.KV_CACHE_HIGH}


def test_a_report_takes_the_place_of_debits() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    for _ in range(3):
        started(guard, COLD, prompt=3000)
    report(guard, COLD, kv_usage_ratio=0.3)  # they shared most of their blocks
    assert admit(guard, COLD, prompt=3000).decision.action is Action.START


def test_after_a_mass_abort_the_level_falls_at_once() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    held = [started(guard, COLD, prompt=3000) for _ in range(3)]
    assert guard.states()[COLD].level is Level.REFUSE_LONG
    for reservation in held:
        reservation.release(Outcome.CANCELLED)
    assert guard.states()[COLD].level is Level.NORMAL
    assert nothing_is_held(guard)


def test_pressure_grows_from_alert_to_refusal_to_compression_to_shedding_and_back() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    started(guard, COLD)
    seen = []
    for usage in [0.8, 0.86, 0.91, 0.96, *[0.96] * 6, 0.89, 0.84, 0.79]:
        report(guard, COLD, kv_usage_ratio=usage)
        decision = admit(guard, COLD, prompt=3000 if usage < 0.95 else 100, output=5000).decision
        seen.append((decision.level.name, str(decision.reason), decision.output_cap_tokens))
        clock.advance(1.0)
    assert list(dict.fromkeys(seen)) == [
        ("NORMAL", "home", None),
        ("ALERT", "home", None),
        ("REFUSE_LONG", "kv_cache_high", None),
        ("COMPRESS", "home", 256),
        ("SHED", "load_shed", None),
    ]
    assert [level for level, *_ in seen[-3:]] == ["REFUSE_LONG", "ALERT", "NORMAL"]


def test_a_feed_that_falls_silent_holds_the_level_for_a_while_and_refuses_nobody_after_it() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD, kv_usage_ratio=0.92)
    reasons = []
    for tenth in range(1, 200):
        clock.advance(0.1)
        report(guard, COLD, age_s=tenth / 10, kv_usage_ratio=0.92)
        admission = admit(guard, COLD, prompt=3000)
        reasons.append(str(admission.decision.reason))
        if admission.reservation is not None:
            admission.reservation.release()
    assert set(reasons[:100]) == {"kv_cache_high"}
    assert set(reasons[115:]) == {"home"}
    assert guard.states()[COLD].level is Level.ALERT


def test_silence_on_an_idle_path_is_not_taken_for_a_full_one() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD, kv_usage_ratio=0.1)
    for _ in range(100):
        clock.advance(1.0)
        report(guard, COLD, age_s=FAR_S, kv_usage_ratio=0.1)
        started(guard, COLD, prompt=9000).release()


def test_a_preemption_storm_refuses_long_prompts_while_hot_goes_on_and_passes() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    reasons: dict[RequestPath, list[str]] = {HOT: [], COLD: []}
    for tenth in range(900):
        storm = min(tenth, 300)  # 10 a second for half a minute
        for path, seen in reasons.items():
            report(guard, path, kv_usage_ratio=0.32, preemptions=storm)
            admission = admit(guard, path, prompt=3000, priority=0)
            seen.append(str(admission.decision.reason))
            if admission.reservation is not None:
                admission.reservation.release(Outcome.ANSWERED)
        clock.advance(0.1)
    assert "preemption_storm" in reasons[COLD][:300]
    assert set(reasons[COLD][-300:]) == {"home"}
    assert set(reasons[HOT]) == {"home"}


# Abuse


def test_a_huge_max_tokens_is_no_reason_to_refuse_and_is_cut_when_it_matters() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    assert admit(guard, COLD, output=10**9).decision.output_cap_tokens is None
    assert guard.states()[COLD].level is Level.NORMAL
    report(guard, COLD, kv_usage_ratio=0.96)
    assert admit(guard, COLD, output=10**9).decision.output_cap_tokens == 256


def test_a_request_with_many_sequences_is_debited_for_all_of_them() -> None:
    guard = guard_of(FakeClock())
    report(guard, COLD)
    guard.admit(Ask(RequestFeatures(100, 10, sequences=95), COLD, COLD.priority()))
    assert guard.states()[COLD].level is Level.COMPRESS


# Queues


def test_warm_moves_away_from_a_crowded_queue_and_back_with_hysteresis() -> None:
    clock = FakeClock()
    guard = guard_of(clock)
    report(guard, COLD)
    found = []
    for waiting in (0, 7, 8, 6, 5, 4, 5, 7, 8):
        report(guard, HOT, waiting_requests=waiting)
        admission = admit(guard, WARM)
        found.append(admission.decision.reason is Placement.SPILLED)
        assert admission.reservation is not None
        admission.reservation.release()
    assert found == [False, False, True, True, True, False, False, False, True]


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


# Breaker


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


# Books


class GuardMachine(RuleBasedStateMachine):
    """Any order of arrivals, starts, ends, reports, silence and failures leaves the books exact."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.guard = guard_of(self.clock, borrowing={"cold_on_hot": 0.3}, queues={"deadline_s": 20})
        self.running: set[Reservation] = set()
        self.waiting: set[Reservation] = set()

    @rule(
        path=st.sampled_from(RequestPath),
        prompt=st.integers(1, 4000),
        within=st.integers(0, 99),
        may_move=st.booleans(),
        timeout_s=st.none() | st.floats(0.1, 30),
    )
    def arrives(self, path: RequestPath, prompt: int, within: int, may_move: bool, timeout_s: float | None) -> None:
        admission = admit(
            self.guard, path, prompt, priority=path.priority(within), may_move=may_move, timeout_s=timeout_s
        )
        if admission.reservation is None:
            assert admission.decision.action is Action.REFUSE
        elif admission.decision.action is Action.START:
            self.running.add(admission.reservation)
        else:
            self.waiting.add(admission.reservation)

    @rule()
    def starts_the_ready(self) -> None:
        for reservation in self.guard.ready():
            self.waiting.remove(reservation)
            self.running.add(reservation)

    @rule(seconds=st.floats(0, 10))
    def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.waiting.difference_update(self.guard.expire())

    @rule(
        engines=st.sampled_from([HOT, COLD]),
        usage=st.floats(0, 1),
        slots=st.integers(0, 8),
        age_s=st.sampled_from([0.0, 5.0]),
    )
    def reports(self, engines: RequestPath, usage: float, slots: int, age_s: float) -> None:
        report(self.guard, engines, slots, age_s, kv_usage_ratio=usage)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), again=st.booleans())
    def ends(self, data: st.DataObject, outcome: Outcome, again: bool) -> None:
        known = sorted(self.running | self.waiting, key=id)
        reservation = known[data.draw(st.integers(0, len(known) - 1))]
        reservation.first_token()
        reservation.release(outcome)
        if again:
            reservation.release(outcome)
        self.running.discard(reservation)
        self.waiting.discard(reservation)

    @invariant()
    def counts_are_exact(self) -> None:
        for name, state in self.guard.states().items():
            running = [reservation for reservation in self.running if reservation.engines.name is name]
            assert state.used_slots == len(running)
            assert state.waiting == sum(reservation.engines.name is name for reservation in self.waiting)
            assert Counter(state.lent) == Counter(r.path for r in running if r.path.engines is not name)
            assert state.least_urgent == max((r.priority for r in running), default=None)

    def teardown(self) -> None:
        for reservation in self.running | self.waiting:
            reservation.release(Outcome.CANCELLED)
        assert nothing_is_held(self.guard)


TestBooks = GuardMachine.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=200), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_after_a_mass_cancellation_everything_is_exactly_zero(prompts: list[int], slots: int) -> None:
    guard = guard_of(FakeClock())
    for engines in (HOT, COLD):
        report(guard, engines, slots)
    admitted = [admit(guard, list(RequestPath)[prompt % 3], prompt).reservation for prompt in prompts]
    for reservation in admitted:
        if reservation is not None:
            reservation.release()
    assert nothing_is_held(guard)
    assert {state.level for state in guard.states().values()} == {Level.NORMAL}
