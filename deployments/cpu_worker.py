"""vLLM's CPU worker with a number of threads for each step."""

from __future__ import annotations

import os
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.engine_activity import EngineActivity, activity_path
from deployments.resources import ALONE_THREADS_VARIABLE, DECODE_THREADS_VARIABLE
from deployments.step_threads import StepThreads


class StepThreadsWorker(CPUWorker):
    """Sets the threads by the tokens of each step and, where cores are lent, by whether another engine computes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        alone = os.environ.get(ALONE_THREADS_VARIABLE)
        self._activity = EngineActivity(activity_path()) if alone else None
        self._threads = StepThreads(
            prompt=int(os.environ["OMP_NUM_THREADS"]),
            decode=int(os.environ[DECODE_THREADS_VARIABLE]),
            alone=int(alone) if alone else None,
            full_step_tokens=self.vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def execute_model(self, scheduler_output: Any) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        if not tokens:  # nothing to compute: a step that only takes note of requests that have ended
            return super().execute_model(scheduler_output)
        others_compute = self._activity.begin_step() if self._activity else True
        set_num_threads(self._threads.of_step(tokens, others_compute))
        try:
            return super().execute_model(scheduler_output)
        finally:
            if self._activity:
                self._activity.end_step()
