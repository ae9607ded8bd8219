"""From readings of a path's replicas to what presses on it now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.config.admission import AdmissionConfig
from app.state.pressure import Pressure, PressureGauge, ReplicaReading, Signal, water_level
from app.state.pulse import ReplicaLoad
from app.state.rates import CounterRate, PrefillSpeed
from app.state.watermarks import Level, Sustained, next_crowded

_PREEMPTIONS_OVER_S = 10.0
_PREFILL_SPEED_OVER_S = 60.0


@dataclass(frozen=True, slots=True)
class _Observation:
    """What the fresh readings of one moment add up to.

    Args:
        kv_usage_ratios: of the replicas, in rising order.
        queued_tokens: likewise, prompt tokens still to compute.
        capacity_tokens: of all caches together.
    """

    kv_usage_ratios: Sequence[float] = ()
    queued_tokens: Sequence[int] = ()
    preemptions_per_s: float = 0.0
    capacity_tokens: int = 0
    requests: int = 0
    waiting: int = 0

    @property
    def replicas(self) -> int:
        return len(self.kv_usage_ratios)


class PressureMonitor:
    """The pressure on one path and on each of its replicas.

    What is let in between two observations is poured over the replicas, least loaded first, as a router would.

    Args:
        block_size: tokens per KV block.
        stale_after_s: an older report tells nothing.
        clock: monotonic seconds.
    """

    def __init__(
        self, rules: AdmissionConfig, block_size: int, stale_after_s: float, clock: Callable[[], float]
    ) -> None:
        self._rules = rules
        self._block_size = block_size
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._gauge = PressureGauge(rules.watermarks)
        self._replica_gauges: dict[str, PressureGauge] = {}
        self._preemptions: dict[str, CounterRate] = {}
        self._seen = _Observation()
        self._poured_tokens = 0
        self._observations = 0
        self._exhausted = Sustained()
        self._crowded = Sustained()
        self.speed = PrefillSpeed(_PREFILL_SPEED_OVER_S, clock())
        self.crowded = False
        self.crowded_for_s = 0.0
        self.exhausted_for_s = 0.0

    def observe(self, readings: Sequence[ReplicaReading], queued_here: int) -> None:
        """Take what the view knows now.

        Args:
            readings: of every replica Serve runs. Their debits hold what was let in since the last call.
            queued_here: requests that wait in this process.
        """
        names = {reading.replica_id for reading in readings}
        self._preemptions = {name: rate for name, rate in self._preemptions.items() if name in names}
        self._replica_gauges = {
            name: self._replica_gauges.get(name) or PressureGauge(self._rules.watermarks) for name in names
        }
        fresh: list[tuple[ReplicaLoad, ReplicaReading, Pressure]] = []
        for reading in readings:
            pressure = None
            if reading.load is not None and reading.age_s <= self._stale_after_s:
                pressure = self._pressure_of(reading, reading.load)
                fresh.append((reading.load, reading, pressure))
            self._replica_gauges[reading.replica_id].update(pressure, self._clock())
        self._seen = _Observation(
            kv_usage_ratios=sorted(pressure.kv_usage_ratio for *_, pressure in fresh),
            queued_tokens=sorted(load.queued_prefill_tokens + read.prefill_debit_tokens for load, read, _ in fresh),
            preemptions_per_s=sum(pressure.preemptions_per_s for *_, pressure in fresh) / max(1, len(fresh)),
            capacity_tokens=sum(load.kv_blocks for load, *_ in fresh) * self._block_size,
            requests=sum(load.running_requests + load.waiting_requests for load, *_ in fresh),
            waiting=sum(load.waiting_requests for load, *_ in fresh),
        )
        self._poured_tokens = 0
        self._observations += 1
        self.update(queued_here)

    def pour(self, uncached_tokens: int) -> int:
        """Debit a request that starts; returns what `unpour` needs. Cached blocks are not debited: those of a shared
        prefix are mostly in use already, and a burst that shares one would count it again and again."""
        self._poured_tokens += uncached_tokens
        return self._observations

    def unpour(self, uncached_tokens: int, poured_at: int) -> None:
        """Give a debit back, unless an observation has replaced it."""
        if poured_at == self._observations:
            self._poured_tokens -= uncached_tokens

    def update(self, queued_here: int) -> None:
        """Bring level, crowding and exhaustion up to date."""
        now_s, pressure = self._clock(), self.pressure()
        if self._replica_gauges:
            self._gauge.update(pressure, now_s)
        else:  # whoever comes first is new, and has been silent for no time
            self._gauge = PressureGauge(self._rules.watermarks)
        waiting = self._seen.waiting + queued_here
        queues, breaker = self._rules.queues, self._rules.breaker
        depth = waiting / self._seen.replicas if self._seen.replicas else None
        self.crowded = next_crowded(self.crowded, depth, queues.crowded_at, queues.crowded_until)
        self.crowded_for_s = self._crowded.update(self.crowded, now_s)
        exhausted = pressure is not None and (
            (pressure.kv_usage_ratio >= breaker.exhausted_kv_ratio and waiting > 0)
            or pressure.preemptions_per_s >= self._rules.watermarks.preemptions_per_s.compress
        )
        self.exhausted_for_s = self._exhausted.update(exhausted, now_s)

    def pressure(self) -> Pressure | None:
        """Of the path: its least loaded replica's, with what was poured since. None when no report is fresh."""
        seen, speed = self._seen, self.speed.tokens_per_s
        if not seen.replicas:
            return None
        poured_caches = self._poured_tokens * seen.replicas / seen.capacity_tokens if seen.capacity_tokens else 0.0
        return Pressure(
            kv_usage_ratio=water_level(seen.kv_usage_ratios, poured_caches),
            queued_prefill_s=self.least_queued_tokens / speed if speed else None,
            preemptions_per_s=seen.preemptions_per_s,
        )

    @property
    def level(self) -> Level:
        return self._gauge.level

    @property
    def signal(self) -> Signal | None:
        return self._gauge.signal

    def replica_levels(self) -> dict[str, Level]:
        return {name: gauge.level for name, gauge in self._replica_gauges.items()}

    @property
    def least_queued_tokens(self) -> float:
        """Prompt tokens that a request sent to the least loaded replica now would wait for."""
        return water_level(self._seen.queued_tokens or (0,), self._poured_tokens)

    @property
    def replicas(self) -> int:
        """That have been heard of lately, one at least."""
        return max(1, self._seen.replicas)

    @property
    def reported_requests(self) -> int:
        """Running and waiting in the engines, whoever sent them."""
        return self._seen.requests

    def tokens_above(self, ratio: float) -> float:
        """Cache that must be freed until the path's usage is down to `ratio`."""
        pressure = self.pressure()
        return 0.0 if pressure is None else max(0.0, pressure.kv_usage_ratio - ratio) * self._seen.capacity_tokens

    def prefill_above_s(self, seconds: float) -> float:
        """Until the least loaded replica has `seconds` of accepted prompts left."""
        pressure = self.pressure()
        queued_s = None if pressure is None else pressure.queued_prefill_s
        return 0.0 if queued_s is None else max(0.0, queued_s - seconds)

    def preemptions_above_s(self, per_s: float) -> float:
        """Until the mean rate of preemptions has faded to `per_s`, if there are no more."""
        rate = self._seen.preemptions_per_s
        return _PREEMPTIONS_OVER_S * math.log(rate / per_s) if rate > per_s else 0.0

    def _pressure_of(self, reading: ReplicaReading, load: ReplicaLoad) -> Pressure:
        now_s, speed = self._clock(), self.speed.tokens_per_s
        capacity = load.kv_blocks * self._block_size
        rate = self._preemptions.get(reading.replica_id)
        if rate is None:
            rate = self._preemptions[reading.replica_id] = CounterRate(_PREEMPTIONS_OVER_S, load.preemptions, now_s)
        queued = load.queued_prefill_tokens + reading.prefill_debit_tokens
        return Pressure(
            kv_usage_ratio=load.kv_usage_ratio + (reading.kv_debit_tokens / capacity if capacity else 0.0),
            queued_prefill_s=queued / speed if speed else None,
            preemptions_per_s=rate.read(load.preemptions, now_s),
        )
