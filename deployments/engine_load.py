"""The load of this process's vLLM engine, as its frontend knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.state.chain_hashes import text_extra
from app.state.lately import BusyTime
from app.state.prefill_progress import PrefillProgress, Prompt
from app.state.pulse import ReplicaLoad
from deployments.step_statistics import StepStatistics


class EngineLoad:
    """Reads the load; for one thread, any.

    Requests come from the frontend's own table, which an abort leaves at once. The engine's statistics come with its
    steps and so stay as they were when the last request is aborted: they count only while there are requests.
    `queued_prefill_tokens` counts a request until its first token, less what PrefillProgress finds in the cache. A
    preempted request counts as decoding while it recomputes.

    Args:
        requests: `AsyncLLM.output_processor.request_states`, after `follow_sequences`.
        kv_blocks: of the whole cache.
        busy: is told at every reading whether there are requests.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        statistics: StepStatistics,
        progress: PrefillProgress,
        kv_blocks: int,
        busy: BusyTime,
    ) -> None:
        self.last = ReplicaLoad(kv_blocks=kv_blocks)  # for other threads
        self._requests = requests
        self._statistics = statistics
        self._progress = progress
        self._kv_blocks = kv_blocks
        self._busy = busy

    def __call__(self) -> ReplicaLoad:
        step, counts = self._statistics.last, self._statistics.counts
        requests = list(self._requests.values())  # in one go: the event loop changes the table meanwhile
        prefilling = [request for request in requests if request.is_prefilling]
        running = min(step.running, len(requests))
        self._busy.look(bool(requests))
        self.last = ReplicaLoad(
            running_requests=running,
            waiting_requests=len(requests) - running,
            queued_prefill_tokens=self._queued_prefill_tokens(prefilling),
            decode_tokens=sum(_context_tokens(request) for request in requests if not request.is_prefilling),
            kv_usage_ratio=step.kv_usage_ratio if requests else 0.0,
            kv_blocks=self._kv_blocks,
            preemptions=step.preemptions,
            prefix_query_tokens=counts.queried,
            prefix_hit_tokens=counts.hit,
        )
        return self.last

    def _queued_prefill_tokens(self, prefilling: list[Any]) -> int:
        texts = {
            request.request_id: Prompt(request.prompt_token_ids, text_extra(request.cache_salt, request.lora_name))
            for request in prefilling
            if request.prompt_token_ids is not None
        }
        embedded = sum(int(request.prompt_len) for request in prefilling if request.prompt_token_ids is None)
        return self._progress.remaining_tokens(texts) + embedded


def _context_tokens(request: Any) -> int:
    generated = request.stats.num_generation_tokens if request.stats is not None else 0
    return int(request.prompt_len) + generated
