"""vLLM's CPU worker with a number of threads for each step: every core while no other engine of the machine computes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.engine_activity import EngineActivity, activity_path
from deployments.resources import DECODE_THREADS_VARIABLE, IDLE_THREADS_VARIABLE

# A step of so few tokens gains a fourth from a second thread and costs half as much again in processor time: its parts
# are so small that threads mostly spin, waiting for one another.
SMALL_STEP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads a step may take.

    Args:
        prompt: while others compute too, for prompts.
        decode: likewise, for steps of a few tokens.
        alone: while no other engine computes.
    """

    prompt: int
    decode: int
    alone: int

    def of_step(self, tokens: int, others_compute: bool) -> int:
        if not others_compute:
            return self.alone
        return self.decode if tokens <= SMALL_STEP_TOKENS else self.prompt


class TwoSpeedWorker(CPUWorker):
    """Sets the threads of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        prompt, decode = int(os.environ["OMP_NUM_THREADS"]), int(os.environ[DECODE_THREADS_VARIABLE])
        alone = os.environ.get(IDLE_THREADS_VARIABLE)
        self._threads = Threads(prompt, decode, int(alone or 0))
        self._activity = EngineActivity(activity_path()) if alone else None
        self._full_step_tokens = self.vllm_config.scheduler_config.max_num_batched_tokens
        self._seen: set[int] = set()

    def execute_model(self, scheduler_output: Any) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        if self._activity is None or not tokens:
            set_num_threads(self._threads.of_step(tokens, others_compute=True))
            return super().execute_model(scheduler_output)
        others_compute = self._activity.begin_step()
        if tokens not in self._seen and (tokens <= SMALL_STEP_TOKENS or tokens == self._full_step_tokens):
            self._seen.add(tokens)
            others_compute = False
        set_num_threads(self._threads.of_step(tokens, others_compute))
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._activity.end_step()
