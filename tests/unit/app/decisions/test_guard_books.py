"""Any order of events leaves the guard's books exact."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.decisions.admission import Action
from app.requests import Outcome, RequestPath
from app.state.engines import Reservation
from app.state.watermarks import Level
from tests.fakes import FakeClock
from tests.unit.app.decisions.guards import COLD, HOT, admit, guard_of, nothing_is_held, report


class GuardMachine(RuleBasedStateMachine):
    """Any order of arrivals, starts, ends, reports, silence and failures leaves the books exact."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.guard = guard_of(self.clock, borrowing={"cold_on_hot": 0.3}, queues={"deadline_s": 20})
        # In the order of arrival, so that a drawn index always names the same one.
        self.running: dict[Reservation, None] = {}
        self.waiting: dict[Reservation, None] = {}

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
            self.running[admission.reservation] = None
        else:
            self.waiting[admission.reservation] = None

    @rule()
    def starts_the_ready(self) -> None:
        for reservation in self.guard.ready():
            del self.waiting[reservation]
            self.running[reservation] = None

    @rule(seconds=st.floats(0, 10))
    def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for reservation in self.guard.expire():
            del self.waiting[reservation]

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
        known = [*self.running, *self.waiting]
        reservation = known[data.draw(st.integers(0, len(known) - 1))]
        reservation.first_token()
        reservation.release(outcome)
        if again:
            reservation.release(outcome)
        self.running.pop(reservation, None)
        self.waiting.pop(reservation, None)

    @invariant()
    def counts_are_exact(self) -> None:
        for name, state in self.guard.states().items():
            running = [reservation for reservation in self.running if reservation.engines.name is name]
            assert state.used_slots == len(running)
            assert state.waiting == sum(reservation.engines.name is name for reservation in self.waiting)
            assert Counter(state.lent) == Counter(r.path for r in running if r.path.engines is not name)
            assert state.least_urgent == max((r.priority for r in running), default=None)

    def teardown(self) -> None:
        for reservation in [*self.running, *self.waiting]:
            reservation.release(Outcome.CANCELLED)
        assert nothing_is_held(self.guard)


TestBooks = GuardMachine.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=200), st.integers(1, 8))
@settings(max_examples=30)
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
