"""When an engine that yields computes all the same: turns of its own, a fixed part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

from deployments.engine_activity import Claim, Others

# How often an engine that waits looks whether it may go on.
LOOK_S = 0.005


class Turns:
    """One engine's turns beside engines that are more urgent. A turn is one step.

    Without them such an engine gets what the others leave, on a busy machine nothing. If it were less nice instead, it
    would compete for a core at every moment, and each step of the others would wait for its slower half.

    Args:
        time_ratio: of the time in which the others are urgent, what its turns have its threads for.
        clock: monotonic seconds.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        time_ratio: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._time_ratio = time_ratio
        self._clock = clock
        self._sleep = sleep
        self._next_s = float("-inf")

    def wait(self, others: Callable[[], Others]) -> Claim:
        """Until nobody is urgent (NONE), or it is this engine's turn (TURN)."""
        while others().urgent:
            if self._clock() >= self._next_s:
                return Claim.TURN
            self._sleep(LOOK_S)
        return Claim.NONE

    def took(self, began_s: float, thread_s: float) -> None:
        """A step is over. One that was no turn counts too, so that others who become urgent are first left alone.

        Args:
            began_s: when it began.
            thread_s: how long each of its threads has computed. It may have lasted longer, where others had its cores.
        """
        self._next_s = began_s + thread_s / self._time_ratio
