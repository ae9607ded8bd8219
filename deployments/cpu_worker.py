"""vLLM's CPU worker with a number of threads for each step."""

from __future__ import annotations

import os
import time
from typing import Any

from torch import set_num_threads  # now: vLLM's worker will put a function without effect in its place
from vllm.v1.worker.cpu_worker import CPUWorker

from deployments.engine_activity import Claim, EngineActivity, Others, activity_path
from deployments.resources import ALONE_THREADS_VARIABLE, DECODE_THREADS_VARIABLE, TURNS_VARIABLE
from deployments.step_threads import StepThreads, is_small
from deployments.step_turns import Turns


class StepThreadsWorker(CPUWorker):
    """Sets the threads by the tokens of each step and, where cores are shared by priority, by what the machine's other
    engines do. An engine that yields waits before its step for its turn, or until nobody computes prompts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        alone, turns = os.environ.get(ALONE_THREADS_VARIABLE), os.environ.get(TURNS_VARIABLE)
        self._activity = EngineActivity(activity_path()) if alone else None
        self._turns = Turns(float(turns)) if turns else None
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
        if self._activity is None:
            set_num_threads(self._threads.of_step(tokens, Others(compute=True)))
            return super().execute_model(scheduler_output)
        claim = self._claim(tokens, self._activity)
        threads = self._threads.of_step(tokens, self._activity.begin_step(claim))
        set_num_threads(threads)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._activity.end_step()
            if self._turns is not None and claim is Claim.TURN:
                self._turns.took(began_s, (time.process_time() - began_cpu_s) / threads)

    def _claim(self, tokens: int, activity: EngineActivity) -> Claim:
        """Waits, where it yields. A small step needs no more than its share, so nobody waits for that."""
        if self._turns is not None:
            return self._turns.wait(activity.others)
        return Claim.NONE if is_small(tokens) else Claim.URGENT
