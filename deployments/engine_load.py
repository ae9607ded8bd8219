"""The load of this process's vLLM engine, as its frontend knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.state.chain_hashes import text_extra
from app.state.prefill_progress import PrefillProgress, Prompt
from app.state.pulse import ReplicaLoad


@dataclass(frozen=True, slots=True)
class _Step:
    running: int = 0
    kv_usage_ratio: float = 0.0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


class StepStatistics:
    """A vLLM stat logger (v1/metrics/loggers.py: StatLoggerBase) that keeps what the engine's last step told.

    `AsyncLLM(stat_loggers=[statistics])` calls it as a factory; it is its own product, for a replica has one engine.
    """

    def __init__(self) -> None:
        self.last = _Step()

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> StepStatistics:
        return self

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Called in the engine's event loop after every step that has something to tell."""
        last = self.last
        preemptions = last.preemptions + (iteration_stats.num_preempted_reqs if iteration_stats else 0)
        if scheduler_stats is None:
            self.last = replace(last, preemptions=preemptions)
        else:  # one assignment: readers in other threads see all of a step or nothing of it
            lookups = scheduler_stats.prefix_cache_stats  # of this step; None where there is no prefix cache
            self.last = _Step(
                scheduler_stats.num_running_reqs,
                scheduler_stats.kv_cache_usage,
                preemptions,
                last.prefix_query_tokens + (lookups.queries if lookups else 0),
                last.prefix_hit_tokens + (lookups.hits if lookups else 0),
            )

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...


class EngineLoad:
    """Reads the load; for one thread, any.

    Requests come from the frontend's own table, which an abort leaves at once. The engine's statistics come with its
    steps and so stay as they were when the last request is aborted: they count only while there are requests.
    `queued_prefill_tokens` counts a request until its first token, less what PrefillProgress finds in the cache. A
    preempted request counts as decoding while it recomputes.

    Args:
        requests: `AsyncLLM.output_processor.request_states`, after `keep_cache_salts`.
        kv_blocks: of the whole cache.
    """

    def __init__(
        self, requests: Mapping[str, Any], statistics: StepStatistics, progress: PrefillProgress, kv_blocks: int
    ) -> None:
        self._requests = requests
        self._statistics = statistics
        self._progress = progress
        self._kv_blocks = kv_blocks

    def __call__(self) -> ReplicaLoad:
        step = self._statistics.last
        requests = list(self._requests.values())  # in one go: the event loop changes the table meanwhile
        prefilling = [request for request in requests if request.is_prefilling]
        running = min(step.running, len(requests))
        return ReplicaLoad(
            running_requests=running,
            waiting_requests=len(requests) - running,
            queued_prefill_tokens=self._queued_prefill_tokens(prefilling),
            decode_tokens=sum(_context_tokens(request) for request in requests if not request.is_prefilling),
            kv_usage_ratio=step.kv_usage_ratio if requests else 0.0,
            kv_blocks=self._kv_blocks,
            preemptions=step.preemptions,
            prefix_query_tokens=step.prefix_query_tokens,
            prefix_hit_tokens=step.prefix_hit_tokens,
        )

    def _queued_prefill_tokens(self, prefilling: list[Any]) -> int:
        texts = {
            request.request_id: Prompt(request.prompt_token_ids, text_extra(request.cache_salt, request.lora_name))
            for request in prefilling
            if request.prompt_token_ids is not None
        }
        embedded = sum(int(request.prompt_len) for request in prefilling if request.prompt_token_ids is None)
        return self._progress.remaining_tokens(texts) + embedded


def keep_cache_salts(output_processor: Any) -> None:
    """Make vLLM's table of requests keep their cache salts, which it would drop."""
    add_request = output_processor.add_request

    def add_request_with_salt(request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        output_processor.request_states[request.request_id].cache_salt = request.cache_salt

    output_processor.add_request = add_request_with_salt


def _context_tokens(request: Any) -> int:
    generated = request.stats.num_generation_tokens if request.stats is not None else 0
    return int(request.prompt_len) + generated
