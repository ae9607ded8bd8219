"""A guard on a simulated clock, and what tests tell and ask it."""

from __future__ import annotations

from typing import Any

from app.config.admission import AdmissionConfig
from app.decisions.admission import Action, Admission, Ask, Guard
from app.requests import RequestFeatures, RequestPath
from app.state.engines import Reservation
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from tests.fakes import FakeClock

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
BLOCK_SIZE = {HOT: 16, COLD: 16}
CHUNK_TOKENS = {HOT: 128, COLD: 1024}


def guard_of(clock: FakeClock, **rules: Any) -> Guard:
    return Guard(AdmissionConfig.model_validate(rules), BLOCK_SIZE, CHUNK_TOKENS, stale_after_s=1.0, clock=clock)


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
