"""One path's engines as an ingress sees them: who runs on them, who waits for them, whether they can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.config.admission import AdmissionConfig
from app.requests import Outcome, Refusal, RequestFeatures, RequestPath
from app.state.circuit import Circuit
from app.state.prefill_outlook import NOTHING_QUEUED, PrefillOutlook
from app.state.pressure import ReplicaReading, Signal
from app.state.pressure_monitor import PressureMonitor
from app.state.rates import DecayingRate
from app.state.waiting_line import Place, WaitingLine
from app.state.watermarks import Level

_DRAIN_OVER_S = 30.0
_LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 60.0
_UNKNOWN_RETRY_S = 5.0  # nothing has ended lately, so nothing is known of the drain


class Reservation:
    """A request that waits or runs. It ends exactly once, by `release`; releasing it again changes nothing.

    Args:
        engines: where it waits or runs. Failover moves it while it waits.
        may_move: the other path's engines would do as well.
    """

    def __init__(
        self, engines: Engines, path: RequestPath, priority: int, features: RequestFeatures, may_move: bool
    ) -> None:
        self.engines = engines
        self.path = path
        self.priority = priority
        self.may_move = may_move
        # Upper bounds: the sequences of one request may share their prompt.
        self.prompt_tokens = features.prompt_tokens * features.sequences
        self.uncached_tokens = features.uncached_tokens * features.sequences
        self.place: Place[Reservation] | None = None
        self.started_s: float | None = None
        self.ahead_tokens = 0.0
        self.is_probe = False
        self.named_for_abort = False
        self.poured_at = -1  # the observation that this one's tokens were added to
        self._ended = False

    def first_token(self) -> None:
        """Its prompt has been computed, which tells how fast the engines take prompts in."""
        self.engines.note_first_token(self)

    def release(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Give up the place or slot, whatever happened."""
        if not self._ended:
            self._ended = True
            self.engines.end(self, outcome)


@dataclass(frozen=True, slots=True)
class EnginesState:
    """What a decision needs to know of one path's engines.

    Args:
        takes_requests: the circuit lets another one through.
        crowded: too many wait to lend anything; `crowded_for_s` tells a burst from a lasting queue.
        slots: requests that fit on the running replicas together; None before the first observation.
        lent: slots held by requests of paths that are not at home here.
        least_urgent: the highest priority value among those that run.
        retry_after_s: when a refused client should come back.
        waiting_tokens: prompt tokens of those who wait, still to compute.
        outlook: on the prompts that the engines have accepted.
    """

    level: Level
    signal: Signal | None
    takes_requests: bool
    crowded: bool
    slots: int | None
    used_slots: int
    waiting: int
    lent: Mapping[RequestPath, int]
    least_urgent: int | None
    retry_after_s: float
    waiting_tokens: int = 0
    crowded_for_s: float = 0.0
    outlook: PrefillOutlook = NOTHING_QUEUED

    @property
    def has_room(self) -> bool:
        """A newcomer would start at once and pass nobody who waits."""
        return not self.waiting and (self.slots is None or self.used_slots < self.slots)

    @property
    def fail(self) -> bool:
        return not self.takes_requests or self.slots == 0

    def lend_to(self, path: RequestPath, share: float) -> bool:
        """Whether `path` may take one more slot here, of the `share` declared for it and of what is spare only."""
        if self.slots is None or self.fail or self.crowded or self.level is not Level.NORMAL or not self.has_room:
            return False
        return self.lent.get(path, 0) < int(share * self.slots)


class Engines:
    """Keeps the state of one path's engines. For one event loop: there is no lock.

    Args:
        name: HOT or COLD.
        monitor: of the same engines.
        chunk_tokens: most tokens of one prompt in a step of them.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: RequestPath,
        rules: AdmissionConfig,
        monitor: PressureMonitor,
        chunk_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._rules = rules
        self._monitor = monitor
        self._chunk_tokens = chunk_tokens
        self._clock = clock
        self._circuit = Circuit(rules.breaker, clock)
        self._line: WaitingLine[Reservation] = WaitingLine(rules.queues)
        self._running: dict[Reservation, None] = {}  # in the order they started
        self._prefilling: dict[Reservation, None] = {}  # those of them without a first token
        self._lent: Counter[RequestPath] = Counter()
        self._priorities: Counter[int] = Counter()
        self._ended_requests = DecayingRate(_DRAIN_OVER_S, clock())
        self._ended_tokens = DecayingRate(_DRAIN_OVER_S, clock())
        self._slots: int | None = None
        self._others_running = 0
        self._last_abort_s = float("-inf")

    def observe(self, readings: Sequence[ReplicaReading], slots: int) -> None:
        """Take what the view knows now; several times a second.

        Args:
            readings: of every replica Serve runs. Their debits hold what was let in since the last call.
            slots: requests that fit on those replicas together.
        """
        self._monitor.observe(readings, len(self._line))
        self._slots = slots
        # Those that are not ours were let in by other ingress replicas, give or take what a report is late. A slot of
        # ours is free as soon as it ends.
        self._others_running = max(0, self._monitor.reported_requests - len(self._running))

    def state(self) -> EnginesState:
        self._monitor.update(len(self._line))
        return EnginesState(
            level=self._monitor.level,
            signal=self._monitor.signal,
            takes_requests=self._circuit.takes_requests,
            crowded=self._monitor.crowded,
            slots=self._slots,
            used_slots=self.used_slots,
            waiting=len(self._line),
            lent=dict(self._lent),
            least_urgent=max(self._priorities, default=None),
            retry_after_s=self._circuit.retry_after_s or self._drain_s(),
            waiting_tokens=self._line.tokens,
            crowded_for_s=self._monitor.crowded_for_s,
            outlook=self._outlook(),
        )

    def _outlook(self) -> PrefillOutlook:
        return PrefillOutlook(
            queued_tokens=self._monitor.least_queued_tokens,
            ours=tuple((reservation.path, reservation.uncached_tokens) for reservation in self._prefilling),
            replicas=self._monitor.replicas,
            chunk_tokens=self._chunk_tokens,
            tokens_per_s=self._monitor.speed.tokens_per_s,
        )

    @property
    def used_slots(self) -> int:
        return len(self._running) + self._others_running

    def replica_levels(self) -> dict[str, Level]:
        return self._monitor.replica_levels()

    def start(self, reservation: Reservation) -> None:
        """Give a slot, at once or after a wait."""
        reservation.place = None
        reservation.started_s = self._clock()
        reservation.ahead_tokens = self._outlook().ahead_tokens(reservation.path, reservation.uncached_tokens)
        reservation.is_probe = self._circuit.begin()
        self._running[reservation] = self._prefilling[reservation] = None
        self._priorities[reservation.priority] += 1
        self._lent[reservation.path] += reservation.path.engines is not self.name
        reservation.poured_at = self._monitor.pour(reservation.uncached_tokens)

    def wait(self, reservation: Reservation, deadline_s: float) -> Refusal | None:
        """Give a place in the line, or tell why there is none."""
        place = self._line.offer(
            reservation,
            path=reservation.path,
            priority=reservation.priority,
            tokens=reservation.uncached_tokens,
            now_s=self._clock(),
            deadline_s=deadline_s,
        )
        if isinstance(place, Refusal):
            return place
        reservation.place = place
        return None

    def line_refusal(self, path: RequestPath, features: RequestFeatures) -> Refusal | None:
        """What `wait` would return."""
        return self._line.refusal(path, features.uncached_tokens * features.sequences)

    def ready(self) -> list[Reservation]:
        """Start those who wait while there is room; they are returned in order."""
        started: list[Reservation] = []
        while self._circuit.takes_requests and (self._slots is None or self.used_slots < self._slots):
            following = self._line.next(self._clock())
            if following is None:
                break
            self.start(following)
            started.append(following)
        return started

    def waiting(self) -> list[Reservation]:
        """The most urgent first."""
        return self._line.items()

    def leave(self, reservation: Reservation) -> None:
        """Give up a place in the line to run elsewhere."""
        if reservation.place is not None:
            self._line.cancel(reservation.place)
            reservation.place = None

    def expire(self) -> list[Reservation]:
        """Those whose deadline passed in the line. They hold nothing any more."""
        late = self._line.expire(self._clock())
        for reservation in late:
            reservation.release()
        return late

    def end(self, reservation: Reservation, outcome: Outcome) -> None:
        """Called by `Reservation.release`, once."""
        self.leave(reservation)
        if reservation.started_s is None:
            return
        del self._running[reservation]
        self._prefilling.pop(reservation, None)
        self._priorities -= Counter({reservation.priority: 1})  # drops what is down to zero
        self._lent[reservation.path] -= reservation.path.engines is not self.name
        self._monitor.unpour(reservation.uncached_tokens, reservation.poured_at)
        self._ended_requests.add(1, self._clock())
        self._ended_tokens.add(reservation.prompt_tokens, self._clock())
        self._circuit.end(outcome, reservation.is_probe)

    def note_first_token(self, reservation: Reservation) -> None:
        """Called by `Reservation.first_token`."""
        if reservation.started_s is not None:
            self._prefilling.pop(reservation, None)
            now_s = self._clock()
            tokens = reservation.ahead_tokens + reservation.uncached_tokens
            self._monitor.speed.add(tokens, now_s - reservation.started_s, now_s)
            if reservation.is_probe:  # it has shown what it was to show, and its answer may go on for minutes
                self._circuit.end(Outcome.ANSWERED, probe=True)
                reservation.is_probe = False

    def victim(self) -> Reservation | None:
        """Whom to abort now: of the least urgent the oldest, once the cache has been exhausted for long."""
        now_s, rules = self._clock(), self._rules.breaker
        self._monitor.update(len(self._line))
        if self._monitor.exhausted_for_s < rules.abort_after_s or now_s - self._last_abort_s < rules.abort_every_s:
            return None
        candidates = (reservation for reservation in self._running if not reservation.named_for_abort)
        chosen = max(candidates, key=lambda reservation: reservation.priority, default=None)
        if chosen is not None:
            chosen.named_for_abort = True
            self._last_abort_s = now_s
        return chosen

    def _drain_s(self) -> float:
        """Until those who wait have started and no signal refuses long prompts any more, at the pace of late."""
        now_s, marks, monitor = self._clock(), self._rules.watermarks, self._monitor
        line_s = _time_s(len(self._line), self._ended_requests.per_s(now_s))
        above_tokens = monitor.tokens_above(marks.kv_usage_ratio.accept_long)
        cache_s = _time_s(above_tokens, self._ended_tokens.per_s(now_s))
        prefill_s = monitor.prefill_above_s(marks.queued_prefill_s.accept_long)
        preemptions_s = monitor.preemptions_above_s(marks.preemptions_per_s.accept_long)
        return min(_MOST_RETRY_S, max(_LEAST_RETRY_S, line_s, cache_s, prefill_s, preemptions_s))


def _time_s(amount: float, per_s: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / per_s if per_s > 0 else _UNKNOWN_RETRY_S
