"""One replica's pulse, second by second: its load, and its prefix hits over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad

WINDOW_TICKS = 15  # long enough that a few requests per second make a steady line


class ReplicaSample(msgspec.Struct, frozen=True, array_like=True):
    """One second of one replica. `hit_ratio` is None without lookups."""

    hit_ratio: float | None
    kv_usage_ratio: float
    running_requests: int
    waiting_requests: int
    queued_prefill_tokens: int
    preemptions_per_s: float


class Lookups(msgspec.Struct, frozen=True):
    """Prompt tokens looked up in a prefix cache, and found."""

    tokens: int = 0
    hits: int = 0

    @property
    def ratio(self) -> float | None:
        return round(self.hits / self.tokens, 4) if self.tokens > 0 else None


def together(lookups: Sequence[Lookups]) -> Lookups:
    """Of several replicas: tokens add up, ratios do not."""
    return Lookups(sum(each.tokens for each in lookups), sum(each.hits for each in lookups))


class ReplicaPulse:
    """Makes rates of the counters that a replica reports. One that was silent begins anew: what its counters did
    meanwhile belongs to no second.
    """

    def __init__(self) -> None:
        self._loads: deque[ReplicaLoad] = deque(maxlen=WINDOW_TICKS + 1)
        self.lookups = Lookups()
        self.sample: ReplicaSample | None = None  # None: stale

    def tick(self, reading: ReplicaReading, stale_after_s: float) -> None:
        """Once per second."""
        load = reading.load
        if load is None or reading.age_s > stale_after_s:
            self._loads.clear()
            self.lookups, self.sample = Lookups(), None
            return
        if self._loads and load.prefix_query_tokens < self._loads[-1].prefix_query_tokens:
            self._loads.clear()  # another engine under the same id
        self._loads.append(load)
        first = self._loads[0]
        self.lookups = Lookups(
            load.prefix_query_tokens - first.prefix_query_tokens, load.prefix_hit_tokens - first.prefix_hit_tokens
        )
        self.sample = ReplicaSample(
            self.lookups.ratio,
            round(load.kv_usage_ratio, 4),
            load.running_requests,
            load.waiting_requests,
            load.queued_prefill_tokens,
            round(max(0, load.preemptions - first.preemptions) / max(1, len(self._loads) - 1), 2),
        )
