"""What one engine on a CPU does with the machine's cores, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deployments.engine_activity import Claim, EngineActivity, Others
from deployments.resources import ALONE_THREADS_VARIABLE, DECODE_THREADS_VARIABLE, TURNS_VARIABLE
from deployments.step_threads import StepThreads, is_small
from deployments.step_turns import Turns


@dataclass(frozen=True, slots=True)
class StepCores:
    """Tells an engine how many threads a step gets, and the machine's other engines that it computes.

    Args:
        threads: how many, by the step and by what the others do.
        activity: where cores are shared by priority; None: each engine keeps to its threads.
        turns: of an engine that yields; None: others yield to this one.
        clock: monotonic seconds.
        cpu_clock: seconds of this process on all its cores.
    """

    threads: StepThreads
    activity: EngineActivity | None = None
    turns: Turns | None = None
    clock: Callable[[], float] = time.monotonic
    cpu_clock: Callable[[], float] = time.process_time

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], full_step_tokens: int, activity: Path) -> StepCores:
        """As `resources.path_resources` says. Raises KeyError where it has said nothing."""
        alone, turns = environment.get(ALONE_THREADS_VARIABLE), environment.get(TURNS_VARIABLE)
        threads = StepThreads(
            prompt=int(environment["OMP_NUM_THREADS"]),
            decode=int(environment[DECODE_THREADS_VARIABLE]),
            alone=int(alone) if alone else None,
            full_step_tokens=full_step_tokens,
        )
        return cls(threads, EngineActivity(activity) if alone else None, Turns(float(turns)) if turns else None)

    @contextmanager
    def step(self, tokens: int) -> Iterator[int]:
        """The threads of a step of so many tokens, while it is computed. Waits, where the engine yields, until nobody
        computes prompts or it is its turn.
        """
        if self.activity is None:
            yield self.threads.of_step(tokens, Others(compute=True))
            return
        claim = self._claim(tokens, self.activity)
        threads = self.threads.of_step(tokens, self.activity.begin_step(claim))
        began_s, began_cpu_s = self.clock(), self.cpu_clock()
        try:
            yield threads
        finally:
            self.activity.end_step()
            if self.turns is not None:
                self.turns.took(began_s, (self.cpu_clock() - began_cpu_s) / threads)

    def _claim(self, tokens: int, activity: EngineActivity) -> Claim:
        """A small step needs no more than its share, so nobody waits for that."""
        if self.turns is not None:
            return self.turns.wait(activity.others)
        return Claim.NONE if is_small(tokens) else Claim.URGENT
