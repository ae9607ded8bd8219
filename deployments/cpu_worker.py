"""vLLM's CPU worker with a number of threads for each step."""

from __future__ import annotations

import os
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.engine_activity import EngineActivity, activity_path
from deployments.resources import DECODE_THREADS_VARIABLE, IDLE_THREADS_VARIABLE
from deployments.step_threads import SMALL_STEP_TOKENS, StepThreads


class TwoSpeedWorker(CPUWorker):
    """Sets the threads by the tokens of each step alone: where the paths' cores are split."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prompt_threads = int(os.environ["OMP_NUM_THREADS"])
        self._decode_threads = int(os.environ[DECODE_THREADS_VARIABLE])

    def execute_model(self, scheduler_output: Any) -> Any:
        small = scheduler_output.total_num_scheduled_tokens <= SMALL_STEP_TOKENS
        set_num_threads(self._decode_threads if small else self._prompt_threads)
        return super().execute_model(scheduler_output)


class IdleCoresWorker(CPUWorker):
    """Sets the threads by the tokens of each step and by whether another engine of the machine computes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._activity = EngineActivity(activity_path())
        self._threads = StepThreads(
            prompt=int(os.environ["OMP_NUM_THREADS"]),
            decode=int(os.environ[DECODE_THREADS_VARIABLE]),
            alone=int(os.environ[IDLE_THREADS_VARIABLE]),
            full_step_tokens=self.vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        if not tokens:  # nothing to compute: a step that only takes note of requests that have ended
            return super().execute_model(scheduler_output)
        set_num_threads(self._threads.of_step(tokens, self._activity.begin_step()))
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._activity.end_step()
