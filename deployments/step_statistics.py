"""What vLLM's engine tells after each of its steps, added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app import metrics
from app.state.tallies import Distribution


@dataclass(frozen=True, slots=True)
class Step:
    """The engine after its last step."""

    running: int = 0
    kv_usage_ratio: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class StepCounts:
    """Of requests since the engine started, in tokens. What a replica computes before it serves is for none.

    Args:
        prompt: of finished prefills.
        computed: of those, what no cache held.
        generated: of answers.
        queried: looked up in the prefix cache. A preempted sequence that comes back finds what it left itself, which
            says nothing of the cache: vLLM counts such lookups apart, and they are not among these.
        hit: of those, what the cache held.
    """

    prompt: int = 0
    computed: int = 0
    generated: int = 0
    queried: int = 0
    hit: int = 0


class StepStatistics:
    """A vLLM stat logger (v1/metrics/loggers.py: StatLoggerBase) that keeps what the engine's steps told.

    `AsyncLLM(stat_loggers=[statistics])` calls it as a factory; it is its own product, for a replica has one engine.
    Its counts are written in the engine's event loop and read anywhere.

    Args:
        engines: `hot` or `cold`, the label of the distributions.

    Attributes:
        serving: what the engine does is for requests. While False, nothing is counted.
    """

    def __init__(
        self,
        engines: str,
        itl: Distribution | None = None,
        prefill: Distribution | None = None,
        queued: Distribution | None = None,
    ) -> None:
        self.last = Step()
        self.counts = StepCounts()
        self.serving = True
        self._engines = engines
        self._itl = itl or Distribution(metrics.ITL.bounds)
        self._prefill = prefill or Distribution(metrics.PREFILL_TIME.bounds)
        self._queued = queued or Distribution(metrics.ENGINE_QUEUE_TIME.bounds)

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> StepStatistics:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Called in the engine's event loop after every step that has something to tell."""
        preemptions = self.last.preemptions + (iteration_stats.num_preempted_reqs if iteration_stats else 0)
        if scheduler_stats is None:
            self.last = Step(self.last.running, self.last.kv_usage_ratio, preemptions)
        else:  # one assignment: readers in other threads see all of a step or nothing of it
            self.last = Step(scheduler_stats.num_running_reqs, scheduler_stats.kv_cache_usage, preemptions)
            lookups = scheduler_stats.prefix_cache_stats
            if lookups is not None and self.serving:  # None where nothing is cached
                self.counts.queried += lookups.queries
                self.counts.hit += lookups.hits
        if iteration_stats is not None and self.serving:
            self._count(iteration_stats)

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def _count(self, step: Any) -> None:
        counts, prompts = self.counts, step.prompt_token_stats
        counts.prompt += prompts.total
        counts.computed += prompts.computed
        counts.generated += step.num_generation_tokens
        if step.inter_token_latencies_iter:
            self._itl.observe(step.inter_token_latencies_iter, self._engines)
        if step.finished_requests:
            done = [request for request in step.finished_requests if request.num_generation_tokens]
            self._prefill.observe(_positive(request.prefill_time for request in done), self._engines)
            self._queued.observe(_positive(request.queued_time for request in done), self._engines)


def _positive(seconds: Iterable[float]) -> list[float]:
    """Without times of which an end is missing."""
    return [value for value in seconds if value >= 0]
