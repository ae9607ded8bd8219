"""What an engine replica tells of itself: instruments, and from the same sources what the autoscaling policy gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from app import metrics
from app.metrics import Metric
from app.state.block_ledger import BlockLedger
from app.state.lately import BusyTime, Lately
from app.state.pulse import ReplicaLoad
from app.state.scaling_inputs import EngineStats
from app.state.tallies import Labels
from deployments.step_statistics import StepStatistics
from deployments.telemetry import Reading, Telemetry

HIT_RATIO_WINDOW_S = 60.0
# Of the rates for scaling. Serve averages them over its own look-back time.
RATES_WINDOW_S = 10.0


def step_statistics(telemetry: Telemetry, engines: str) -> StepStatistics:
    """The engine's stat logger, whose distributions are instruments."""
    known = (engines,)
    return StepStatistics(
        engines,
        telemetry.distribution(metrics.ITL, known),
        telemetry.distribution(metrics.PREFILL_TIME, known),
        telemetry.distribution(metrics.ENGINE_QUEUE_TIME, known),
    )


class EngineTelemetry:
    """Counts come from the engine's steps and KV events, levels from the load that the pulse feed reads.

    Args:
        engines: `hot` or `cold`.
        load: the last one that was read.
        ledger: of the engine's cache; its counts are read from other threads.
        busy: how long the engine has had requests.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        engines: str,
        statistics: StepStatistics,
        load: Callable[[], ReplicaLoad],
        ledger: BlockLedger,
        busy: BusyTime,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._labels: Labels = (engines,)
        self._statistics = statistics
        self._load = load
        self._ledger = ledger
        self._busy = busy
        self._clock = clock
        self._hits = Lately(HIT_RATIO_WINDOW_S, clock, 0, 0)
        self._rates = Lately(RATES_WINDOW_S, clock, *self._rising())
        self._prewarmed_tokens = telemetry.tally(metrics.PREWARMED_TOKENS, self._labels)
        for metric, read in self._readings().items():
            telemetry.observe(metric, self._labelled(read))

    def serves(self, prewarmed_tokens: int) -> None:
        """From now on the engine works for requests. What kept it busy before says nothing of them."""
        self._prewarmed_tokens.add(prewarmed_tokens, *self._labels)
        self._rates = Lately(RATES_WINDOW_S, self._clock, *self._rising())
        self._statistics.serving = True

    def stats(self) -> dict[str, float]:
        """`EngineStats` as Serve carries it: a value that is not known is not there."""
        load, change = self._load(), self._rates.change(*self._rising())
        computed, preempted, evicted, busy = (change.per_s(index) for index in range(4))
        stats = EngineStats(
            kv_usage_ratio=load.kv_usage_ratio,
            queued_prefill_tokens=load.queued_prefill_tokens,
            running_sequences=load.running_requests,
            waiting_sequences=load.waiting_requests,
            computed_tokens_per_s=computed,
            busy_ratio=min(1.0, busy),
            preemptions_per_s=preempted,
            evicted_blocks_per_s=evicted,
            prefix_hit_ratio=self._hit_ratio(),
        )
        told: dict[str, float] = msgspec.to_builtins(stats)
        return told

    def _rising(self) -> tuple[float, ...]:
        counts = self._statistics.counts
        computed = counts.computed + counts.generated
        return computed, self._statistics.last.preemptions, self._ledger.counts.removed, self._busy.total_s

    def _hit_ratio(self) -> float | None:
        counts = self._statistics.counts
        hit, queried = self._hits.change(counts.hit, counts.queried).amounts
        return hit / queried if queried else None

    def _readings(self) -> Mapping[Metric, Callable[[], float | None]]:
        counts, cache, load = self._statistics.counts, self._ledger.counts, self._load
        return {
            metrics.PROMPT_TOKENS: lambda: counts.prompt,
            metrics.GENERATED_TOKENS: lambda: counts.generated,
            metrics.PREFIX_QUERY_TOKENS: lambda: counts.queried,
            metrics.PREFIX_HIT_TOKENS: lambda: counts.hit,
            metrics.PREFIX_HIT_RATIO: self._hit_ratio,
            metrics.PREEMPTIONS: lambda: self._statistics.last.preemptions,
            metrics.STORED_BLOCKS: lambda: cache.stored,
            metrics.EVICTED_BLOCKS: lambda: cache.removed,
            metrics.EVICT_AND_ALLOCATE: lambda: cache.churned,
            metrics.CACHED_BLOCKS: lambda: self._ledger.cached_blocks,
            metrics.RUNNING_REQUESTS: lambda: load().running_requests,
            metrics.WAITING_REQUESTS: lambda: load().waiting_requests,
            metrics.QUEUED_PREFILL_TOKENS: lambda: load().queued_prefill_tokens,
            metrics.KV_USAGE: lambda: load().kv_usage_ratio,
            metrics.KV_BLOCKS: lambda: load().kv_blocks,
        }

    def _labelled(self, read: Callable[[], float | None]) -> Reading:
        def values() -> dict[Labels, float]:
            value = read()
            return {} if value is None else {self._labels: value}

        return values
