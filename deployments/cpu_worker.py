"""vLLM's CPU worker with a number of threads for each step."""

from __future__ import annotations

import os
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.engine_activity import activity_path
from deployments.step_cores import StepCores


class StepThreadsWorker(CPUWorker):
    """Sets the threads by the tokens of each step and by what the machine's other engines do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        full_step_tokens = self.vllm_config.scheduler_config.max_num_batched_tokens
        self._cores = StepCores.of_environment(os.environ, full_step_tokens, activity_path())

    def execute_model(self, scheduler_output: Any) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        if not tokens:  # nothing to compute: a step that only takes note of requests that have ended
            return super().execute_model(scheduler_output)
        with self._cores.step(tokens) as threads:
            set_num_threads(threads)
            return super().execute_model(scheduler_output)
