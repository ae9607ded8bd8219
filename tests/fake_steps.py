"""What vLLM tells its stat loggers of one step, in vLLM's own words, as far as it is read here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def scheduler(running: int = 0, usage: float = 0.0, queries: int = 0, hits: int = 0, preempted_queries: int = 0) -> Any:
    """`SchedulerStats`."""
    lookups = SimpleNamespace(
        queries=queries, hits=hits, preempted_queries=preempted_queries, preempted_hits=preempted_queries
    )
    return SimpleNamespace(num_running_reqs=running, kv_cache_usage=usage, prefix_cache_stats=lookups)


def iteration(
    preempted: int = 0,
    prompt: int = 0,
    computed: int = 0,
    generated: int = 0,
    itl: tuple[float, ...] = (),
    finished: tuple[Any, ...] = (),
) -> Any:
    """`IterationStats`."""
    return SimpleNamespace(
        num_preempted_reqs=preempted,
        prompt_token_stats=SimpleNamespace(total=prompt, computed=computed),
        num_generation_tokens=generated,
        inter_token_latencies_iter=list(itl),
        finished_requests=list(finished),
    )


def finished(prefill_s: float, queued_s: float, generated: int = 1) -> Any:
    """`FinishedRequestStats`."""
    return SimpleNamespace(prefill_time=prefill_s, queued_time=queued_s, num_generation_tokens=generated)
