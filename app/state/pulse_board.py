"""The last ten minutes of the whole application, second by second, for whoever watches. Soft: it decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from app.requests import RequestPath
from app.state.board_reports import Decision, EnginesReport, IngressReport, Prefix, ScalingEvent
from app.state.cache_condition import Condition, condition_of
from app.state.hot_prefixes import HotPrefix, HotPrefixes
from app.state.pressure import ReplicaReading
from app.state.replica_pulse import WINDOW_TICKS, ReplicaPulse, ReplicaSample, together
from app.state.request_pulse import PathSample, RequestPulse

HISTORY_S = 600
USUAL_S = 300
MOST_REPLICAS = 64  # that have a history of their own; all of them count for their path
MOST_DECISIONS = 200
MOST_EVENTS = 100
MOST_PREFIXES = 20
INGRESS_STALE_S = 5.0
_MOST_DIGITS = 15  # of a tick; clients may send anything
ENGINES = (RequestPath.HOT, RequestPath.COLD)

Readings = Mapping[RequestPath, Sequence[ReplicaReading] | None]


@dataclass(frozen=True, slots=True)
class BoardRules:
    """Args:
    stale_after_s: a replica unheard of for longer is stale.
    prefix_half_life_s: of a prefix's count.
    prefix_tokens: kept of prefixes, all together.
    """

    stale_after_s: float
    low_hit_ratio: float
    prefix_half_life_s: float
    prefix_tokens: int


class EnginesSample(msgspec.Struct, frozen=True, array_like=True):
    """One second of one path's engines. None is unknown: no replica, or no ingress, reports.

    Args:
        kv_usage_ratio: of the least loaded replica, which is what the watermarks look at.
        preemptions_per_s: of all replicas together, like the requests and tokens.
        queued_requests: waiting in the ingresses.
        level: the highest that an ingress has; a `Level`.
    """

    replicas: int
    stale_replicas: int
    hit_ratio: float | None
    kv_usage_ratio: float | None
    running_requests: int | None
    waiting_requests: int | None
    queued_prefill_tokens: int | None
    preemptions_per_s: float | None
    queued_requests: int | None
    level: int | None
    signal: str | None


class Sample(msgspec.Struct, frozen=True):
    """One second. Of a stale replica there is None; of paths there is None while no ingress reports."""

    at_s: float
    engines: Mapping[RequestPath, EnginesSample]
    replicas: Mapping[str, ReplicaSample | None]
    paths: Mapping[RequestPath, PathSample] | None


class ReplicaNow(msgspec.Struct, frozen=True):
    """`heard_s` ago; None: never."""

    engines: RequestPath
    stale: bool
    heard_s: float | None


class Made(msgspec.Struct, frozen=True):
    """A decision with its number and the time it was told."""

    number: int
    at_s: float
    decision: Decision


class Scaled(msgspec.Struct, frozen=True):
    number: int
    at_s: float
    event: ScalingEvent


class Update(msgspec.Struct, frozen=True):
    """What a watcher that has seen everything up to some tick lacks.

    Args:
        id: of the last tick; hand it in to get what follows.
        whole: everything there is: what the watcher knew of decisions and events is void.
        columns: what the entries of the samples' arrays are.
        ingresses: that report.
    """

    id: str
    whole: bool
    at_s: float
    columns: Mapping[str, Sequence[str]]
    samples: Sequence[Sample]
    conditions: Mapping[RequestPath, Condition]
    replicas: Mapping[str, ReplicaNow]
    ingresses: int
    decisions: Sequence[Made]
    scaling: Sequence[Scaled]
    prefixes: Sequence[HotPrefix]


COLUMNS: Mapping[str, Sequence[str]] = {
    "engines": EnginesSample.__struct_fields__,
    "replicas": ReplicaSample.__struct_fields__,
    "paths": PathSample.__struct_fields__,
}


class BoardState:
    """Bounded, whatever it is told. For one event loop.

    Args:
        incarnation: another one is another history.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch, for people.
    """

    def __init__(
        self, rules: BoardRules, incarnation: str, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._rules = rules
        self._incarnation = incarnation
        self._clock = clock
        self._wall_clock = wall_clock
        self._ticks = 0
        self._told = 0
        self._history: deque[Sample] = deque(maxlen=HISTORY_S)
        self._pulses: dict[str, ReplicaPulse] = {}
        self._replicas: dict[str, ReplicaNow] = {}
        self._paths = {path: RequestPulse() for path in RequestPath}
        self._ingresses: dict[str, tuple[float, IngressReport]] = {}
        self._decisions: deque[tuple[int, Made]] = deque(maxlen=MOST_DECISIONS)
        self._scaling: deque[tuple[int, Scaled]] = deque(maxlen=MOST_EVENTS)
        self._prefixes = HotPrefixes(256, rules.prefix_tokens, rules.prefix_half_life_s, clock)

    def report(self, report: IngressReport) -> list[int]:
        """Take an ingress's summary; returns the keys of prefixes whose content is wanted."""
        now_s, wall_s = self._clock(), self._wall_clock()
        self._ingresses[report.ingress] = (now_s, report)
        for path, told in report.paths.items():
            self._paths[path].add(told, now_s)
        for decision in report.decisions:
            self._decisions.append((self._ticks, Made(self._number(), round(wall_s, 1), decision)))
        return self._prefixes.count(report.prefixes)

    def scaled(self, event: ScalingEvent) -> None:
        self._scaling.append((self._ticks, Scaled(self._number(), round(self._wall_clock(), 1), event)))

    def hottest(self, engines: RequestPath, max_tokens: int) -> list[Prefix]:
        """What a new replica of these engines should compute, the hottest first."""
        return self._prefixes.hottest(engines, max_tokens)

    def tick(self, readings: Readings) -> None:
        """Once per second: what is known now becomes a sample."""
        now_s = self._clock()
        self._ingresses = {
            name: (heard_s, report)
            for name, (heard_s, report) in self._ingresses.items()
            if now_s - heard_s <= INGRESS_STALE_S
        }
        known = {engines: readings.get(engines) or () for engines in ENGINES}
        self._follow(known)
        paths = {path: pulse.tick(now_s) for path, pulse in self._paths.items()}
        self._ticks += 1
        self._history.append(
            Sample(
                round(self._wall_clock(), 1),
                {engines: self._engines_sample(engines, known[engines]) for engines in ENGINES},
                {name: pulse.sample for name, pulse in islice(self._pulses.items(), MOST_REPLICAS)},
                paths if self._ingresses else None,
            )
        )

    def update(self, after: str | None) -> Update:
        """What follows the update with that id; everything where the id is unknown, or of another incarnation."""
        seen = self._tick_of(after)
        first_kept = self._ticks - len(self._history)
        whole = seen is None or seen < first_kept
        since = first_kept if seen is None else max(seen, first_kept)
        samples = list(self._history)[since - first_kept :]
        return Update(
            id=f"{self._incarnation}-{self._ticks}",
            whole=whole,
            at_s=round(self._wall_clock(), 1),
            columns=COLUMNS,
            samples=samples,
            conditions={engines: self._condition(engines) for engines in ENGINES},
            replicas=dict(islice(self._replicas.items(), MOST_REPLICAS)),
            ingresses=len(self._ingresses),
            decisions=[made for tick, made in self._decisions if tick >= since],
            scaling=[scaled for tick, scaled in self._scaling if tick >= since],
            prefixes=self._prefixes.shown(MOST_PREFIXES),
        )

    def _tick_of(self, update_id: str | None) -> int | None:
        incarnation, _, tick = (update_id or "").rpartition("-")
        if incarnation != self._incarnation or not tick.isdecimal() or len(tick) > _MOST_DIGITS:
            return None
        return int(tick) if int(tick) <= self._ticks else None

    def _number(self) -> int:
        self._told += 1
        return self._told

    def _follow(self, readings: Mapping[RequestPath, Sequence[ReplicaReading]]) -> None:
        """A replica that Serve has stopped is forgotten; its past stays in the history."""
        pulses, now = {}, {}
        for engines, replicas in readings.items():
            for reading in replicas:
                pulse = self._pulses.get(reading.replica_id) or ReplicaPulse()
                pulse.tick(reading, self._rules.stale_after_s)
                pulses[reading.replica_id] = pulse
                heard_s = round(reading.age_s, 1) if reading.age_s < float("inf") else None
                now[reading.replica_id] = ReplicaNow(engines, pulse.sample is None, heard_s)
        self._pulses, self._replicas = pulses, now

    def _engines_sample(self, engines: RequestPath, readings: Sequence[ReplicaReading]) -> EnginesSample:
        pulses = [self._pulses[reading.replica_id] for reading in readings]
        fresh = [pulse.sample for pulse in pulses if pulse.sample is not None]
        told = [report.engines[engines] for _, report in self._ingresses.values() if engines in report.engines]
        worst = max(told, key=lambda report: report.level, default=EnginesReport(0, 0))
        return EnginesSample(
            replicas=len(pulses),
            stale_replicas=len(pulses) - len(fresh),
            hit_ratio=together([pulse.lookups for pulse in pulses]).ratio,
            kv_usage_ratio=min((sample.kv_usage_ratio for sample in fresh), default=None),
            running_requests=sum(sample.running_requests for sample in fresh) if fresh else None,
            waiting_requests=sum(sample.waiting_requests for sample in fresh) if fresh else None,
            queued_prefill_tokens=sum(sample.queued_prefill_tokens for sample in fresh) if fresh else None,
            preemptions_per_s=round(sum(sample.preemptions_per_s for sample in fresh), 2) if fresh else None,
            queued_requests=sum(report.queued_requests for report in told) if told else None,
            level=worst.level if told else None,
            signal=worst.signal,
        )

    def _condition(self, engines: RequestPath) -> Condition:
        samples = [sample.engines[engines] for sample in self._history]
        if not samples:
            return condition_of(None, (), self._rules.low_hit_ratio, reports=False)
        now = samples[-1]
        recent = [sample.hit_ratio for sample in samples[-USUAL_S - WINDOW_TICKS : -WINDOW_TICKS]]
        reports = now.replicas > now.stale_replicas
        return condition_of(now.hit_ratio, recent, self._rules.low_hit_ratio, reports=reports)
