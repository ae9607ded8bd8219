"""When an engine that yields computes all the same: turns of its own, a fixed part of the time."""

from __future__ import annotations


class Turns:
    """One engine's turns beside engines that are more urgent. A turn is one step.

    Without them such an engine gets what the others leave, on a busy machine nothing. If it were less nice instead, it
    would compete for a core at every moment, and each step of the others would wait for its slower half.

    Args:
        time_ratio: of the time in which the others compute, what its turns have its threads for.
    """

    def __init__(self, time_ratio: float) -> None:
        self._time_ratio = time_ratio
        self._next_s = float("-inf")

    def due(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def took(self, began_s: float, thread_s: float) -> None:
        """A turn is over.

        Args:
            began_s: when it began.
            thread_s: how long each of its threads has computed. It may have lasted longer, where others had its cores.
        """
        self._next_s = began_s + thread_s / self._time_ratio
