"""Ten simulated minutes of too much traffic: nobody is forgotten, and hot is not displaced."""

from __future__ import annotations

from collections import Counter

from app.decisions.admission import Action
from app.requests import Outcome, Refusal, RequestPath
from app.state.engines import Reservation
from tests.fakes import FakeClock
from tests.unit.app.decisions.guards import COLD, HOT, WARM, admit, ask, guard_of, report


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
    bounds = {"hot": {"max_requests": 64, "max_tokens": 100_000, "deadline_s": 30.0}}
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
    clock.advance(1.0)  # for so long they are crowded, then cold moves
    borrowed = [admit(guard, COLD).decision.engines for _ in range(30)].count(HOT)
    assert borrowed == 2
    assert all(admit(guard, HOT).decision.action is Action.START for _ in range(8))
    hot = guard.admit(ask(HOT))
    assert hot.decision.action is Action.WAIT
    assert all(admit(guard, COLD).decision.engines is COLD for _ in range(30))
