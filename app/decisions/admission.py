"""Who starts now, who waits, who runs elsewhere, who is refused: watermarks, queues, borrowing, failover, aborts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.config.admission import AdmissionConfig
from app.requests import Refusal, RequestFeatures, RequestPath
from app.state.engines import Engines, EnginesState, Reservation
from app.state.pressure import ReplicaReading, Signal
from app.state.pressure_monitor import PressureMonitor
from app.state.watermarks import Level

_REFUSALS = {
    Signal.KV_USAGE_RATIO: Refusal.KV_CACHE_HIGH,
    Signal.QUEUED_PREFILL_S: Refusal.PREFILL_QUEUE_LONG,
    Signal.PREEMPTIONS_PER_S: Refusal.PREEMPTION_STORM,
}


class Action(StrEnum):
    START = "start"
    WAIT = "wait"
    REFUSE = "refuse"


class Placement(StrEnum):
    """Why a request was let in where it was."""

    HOME = "home"
    SPILLED = "spilled"  # its own engines are crowded or pressed, the others lend
    FAILOVER = "failover"  # its own engines fail, the others lend


@dataclass(frozen=True, slots=True)
class Ask:
    """A classified request at the door.

    Args:
        priority: of its path and key, lower is more urgent. What is shed or aborted depends on nothing finer.
        may_move: it fits the other path's engines too, and nobody forced its path.
        timeout_s: the client's own deadline, or None.
    """

    features: RequestFeatures
    path: RequestPath
    priority: int
    may_move: bool = True
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """What becomes of a request. Headers, metrics and logs carry `reason` unchanged.

    Args:
        engines: HOT or COLD, where it starts or waits, or would have.
        level: of those engines.
        prefill_s: predicted time from its start there to its first token; 0 while their speed is unknown.
        output_cap_tokens: `max_tokens` must be lowered to this, and the client told.
        retry_after_s: with REFUSE.
    """

    action: Action
    engines: RequestPath
    reason: Placement | Refusal
    level: Level
    output_cap_tokens: int | None = None
    retry_after_s: float | None = None
    prefill_s: float = 0.0


def decide(ask: Ask, states: Mapping[RequestPath, EnginesState], rules: AdmissionConfig) -> AdmissionDecision:
    """What to do with a request, by what is known of the HOT and COLD engines.

    Pressure refuses or shortens warm and cold work only. Hot traffic is bounded by its queue and by the time to its
    first token: what cannot be in time any more is refused at once, and delays nobody who can.
    """
    engines, placement = _place(ask, states, rules)
    state = states[engines]
    prefill_s = sum(_prefill_s(ask, state))
    refusal = _refusal(ask, state, rules)
    if refusal is not None:
        retry_s = state.retry_after_s
        return AdmissionDecision(
            Action.REFUSE, engines, refusal, state.level, retry_after_s=retry_s, prefill_s=prefill_s
        )
    action = Action.START if state.has_room else Action.WAIT
    cap = _output_cap(ask, state.level, rules)
    return AdmissionDecision(action, engines, placement, state.level, cap, prefill_s=prefill_s)


def _place(
    ask: Ask, states: Mapping[RequestPath, EnginesState], rules: AdmissionConfig
) -> tuple[RequestPath, Placement]:
    """Home, unless home fails or is pressed and the other engines have room that they lend. Nobody waits away from
    home, so what was borrowed returns with the request that holds it."""
    home, other = ask.path.engines, ask.path.other_engines
    if ask.may_move:
        if states[home].fail:
            if states[other].lend_to(ask.path, rules.borrowing.failover):
                return other, Placement.FAILOVER
            return home, Placement.HOME
        lent = states[other].lend_to(ask.path, rules.borrowing.share(ask.path))
        if lent and (_is_pressed(ask.path, states[home], rules) or _is_sooner(ask, states[other], states[home], rules)):
            return other, Placement.SPILLED
    return home, Placement.HOME


def _is_pressed(path: RequestPath, home: EnginesState, rules: AdmissionConfig) -> bool:
    """A burst is served at home sooner than by engines that have long work to do."""
    crowded = home.crowded and home.crowded_for_s >= rules.queues.crowded_after_s
    return crowded or (path is RequestPath.WARM and home.level >= Level.REFUSE_LONG)


def _is_sooner(ask: Ask, other: EnginesState, home: EnginesState, rules: AdmissionConfig) -> bool:
    """Whether a hot request that would be late at home is known to be in time on the other engines, even if they hold
    nothing of its prompt."""
    if not _is_late(ask, home, rules) or other.outlook.tokens_per_s is None:
        return False
    there = replace(ask, features=replace(ask.features, cached_tokens=0))
    return sum(_prefill_s(there, other)) <= _first_token_limit_s(ask, rules)


def _is_late(ask: Ask, state: EnginesState, rules: AdmissionConfig) -> bool:
    """Whether the prompts that those engines have accepted would delay a hot request beyond its time."""
    if ask.path is not RequestPath.HOT:
        return False
    ahead_s, own_s = _prefill_s(ask, state)
    return ahead_s > _patience_s(ask, own_s, rules)


def _patience_s(ask: Ask, own_s: float, rules: AdmissionConfig) -> float:
    """How long a hot request may wait for others, beside what its own prompt takes. One that takes nearly all the time
    by itself may wait for a quarter of it: else only idle engines would ever take it."""
    limit_s = _first_token_limit_s(ask, rules)
    return max(limit_s - own_s, limit_s / 4)


def _first_token_limit_s(ask: Ask, rules: AdmissionConfig) -> float:
    return rules.queues.hot.first_token_s if ask.timeout_s is None else ask.timeout_s


def _prefill_s(ask: Ask, state: EnginesState) -> tuple[float, float]:
    """Predicted, of the prompts ahead and of its own. What another path's caches hold of it is not known here."""
    outlook = state.outlook
    own_tokens = ask.features.uncached_tokens
    ahead_tokens = outlook.ahead_tokens(ask.path, own_tokens)
    return outlook.seconds(ahead_tokens), outlook.seconds(own_tokens)


def _refusal(ask: Ask, state: EnginesState, rules: AdmissionConfig) -> Refusal | None:
    if not state.takes_requests:
        return Refusal.ENGINES_FAILED
    if ask.path is RequestPath.HOT:
        return Refusal.PREFILL_QUEUE_LONG if _is_late(ask, state, rules) else None
    if state.signal is None:
        return None
    if state.level >= Level.SHED and (state.least_urgent is None or ask.priority >= state.least_urgent):
        return Refusal.LOAD_SHED
    if state.level >= Level.REFUSE_LONG and _is_long(ask.features, state.signal, rules):
        return _REFUSALS[state.signal]
    return None


def _is_long(features: RequestFeatures, signal: Signal, rules: AdmissionConfig) -> bool:
    """A cached prompt takes cache as any other, but no time to compute."""
    by_time = signal is Signal.QUEUED_PREFILL_S
    tokens = features.uncached_tokens if by_time else features.prompt_tokens
    return tokens > rules.watermarks.long_prompt_tokens


def _output_cap(ask: Ask, level: Level, rules: AdmissionConfig) -> int | None:
    cap, wished = rules.watermarks.compressed_output_tokens, ask.features.max_output_tokens
    if ask.path is RequestPath.COLD and level >= Level.COMPRESS and (wished is None or wished > cap):
        return cap
    return None


@dataclass(frozen=True, slots=True)
class Admission:
    """A decision, and what it holds: a slot (START), a place in the line (WAIT), nothing (REFUSE)."""

    decision: AdmissionDecision
    reservation: Reservation | None = None


class Guard:
    """Decides and keeps the books. For one event loop: there is no lock.

    Args:
        block_size: tokens per KV block of the HOT and COLD engines.
        chunk_tokens: most tokens of one prompt in a step of them.
        stale_after_s: an older report tells nothing.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rules: AdmissionConfig,
        block_size: Mapping[RequestPath, int],
        chunk_tokens: Mapping[RequestPath, int],
        stale_after_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._engines = {
            name: Engines(
                name, rules, PressureMonitor(rules, block_size[name], stale_after_s, clock), chunk_tokens[name], clock
            )
            for name in (RequestPath.HOT, RequestPath.COLD)
        }

    def observe(self, engines: RequestPath, readings: Sequence[ReplicaReading], slots: int) -> None:
        """Take what the view knows of one path's engines (`Engines.observe`)."""
        self._engines[engines].observe(readings, slots)

    def states(self) -> dict[RequestPath, EnginesState]:
        return {name: engines.state() for name, engines in self._engines.items()}

    def replica_levels(self, engines: RequestPath) -> dict[str, Level]:
        return self._engines[engines].replica_levels()

    def admit(self, ask: Ask) -> Admission:
        """Decide, and debit at once what is let in. The caller releases the reservation in its `finally`."""
        decision = self.explain(ask)
        if decision.action is Action.REFUSE:
            return Admission(decision)
        engines = self._engines[decision.engines]
        reservation = Reservation(engines, ask.path, ask.priority, ask.features, ask.may_move)
        if decision.action is Action.START:
            engines.start(reservation)
        else:
            engines.wait(reservation, self._clock() + self._longest_wait_s(ask, engines.state()))
        return Admission(decision, reservation)

    def explain(self, ask: Ask) -> AdmissionDecision:
        """What `admit` would decide. Nothing is booked."""
        states = self.states()
        decision = decide(ask, states, self._rules)
        if decision.action is not Action.WAIT:
            return decision
        full = self._engines[decision.engines].line_refusal(ask.path, ask.features)
        if full is None:
            return decision
        retry_s = states[decision.engines].retry_after_s
        return AdmissionDecision(Action.REFUSE, decision.engines, full, decision.level, retry_after_s=retry_s)

    def _longest_wait_s(self, ask: Ask, state: EnginesState) -> float:
        queues = self._rules.queues
        wait_s = queues.longest_wait_s(ask.path) if ask.timeout_s is None else ask.timeout_s
        if ask.path is not RequestPath.HOT:
            return wait_s
        _, own_s = _prefill_s(ask, state)
        return min(wait_s, _patience_s(ask, own_s, self._rules))

    def ready(self) -> list[Reservation]:
        """Those who waited and start now, on `reservation.engines`. Ask after each release and observation."""
        started: list[Reservation] = []
        for name, engines in self._engines.items():
            started += engines.ready()
            if engines.state().fail:
                started += self._fail_over(engines, self._engines[name.other_engines])
        return started

    def _fail_over(self, failing: Engines, standby: Engines) -> list[Reservation]:
        moved: list[Reservation] = []
        for reservation in failing.waiting():
            state = standby.state()
            if not state.has_room:
                break
            if reservation.may_move and state.lend_to(reservation.path, self._rules.borrowing.failover):
                failing.leave(reservation)
                reservation.engines = standby
                standby.start(reservation)
                moved.append(reservation)
        return moved

    def expire(self) -> list[Reservation]:
        """Those who waited until their deadline (`Refusal.DEADLINE_PASSED`). Ask several times a second."""
        return [reservation for engines in self._engines.values() for reservation in engines.expire()]

    def victims(self) -> list[Reservation]:
        """Those to abort now (`Refusal.ABORTED_FOR_CAPACITY`), at most one on each path's engines. The caller cancels
        their requests, which releases them."""
        named = (engines.victim() for engines in self._engines.values())
        return [reservation for reservation in named if reservation is not None]
