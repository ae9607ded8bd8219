"""vLLM's CPU worker with two numbers of threads: all for prompts, fewer for decoding."""

from __future__ import annotations

import os
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.resources import DECODE_THREADS_VARIABLE

# A step of so few tokens gains a fourth from a second thread and costs half as much again in processor time: its parts
# are so small that threads mostly spin, waiting for one another.
SMALL_STEP_TOKENS = 16


class TwoSpeedWorker(CPUWorker):
    """Sets the threads by the tokens of each step.

    A matrix product keeps the division of work that it was first computed with. Its size is the tokens of the step, so
    each size must always meet the same number of threads: hence a rule by tokens and by nothing else.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all_threads = int(os.environ["OMP_NUM_THREADS"])
        self._decode_threads = int(os.environ[DECODE_THREADS_VARIABLE])

    def execute_model(self, scheduler_output: Any) -> Any:
        small = scheduler_output.total_num_scheduled_tokens <= SMALL_STEP_TOKENS
        set_num_threads(self._decode_threads if small else self._all_threads)
        return super().execute_model(scheduler_output)
