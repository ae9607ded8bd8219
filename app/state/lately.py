"""What cumulative counts have done in the time just past."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

# Readings closer together than this share of the window are not kept apart, which bounds the memory.
_RESOLUTION = 1 / 60


@dataclass(frozen=True, slots=True)
class Change:
    """By how much each count rose in `elapsed_s`; 0 s: there has been one reading only."""

    amounts: tuple[float, ...]
    elapsed_s: float

    def per_s(self, index: int) -> float:
        return self.amounts[index] / self.elapsed_s if self.elapsed_s > 0 else 0.0


class Lately:
    """The change of some counts over the last `window_s`, or since the oldest reading if that is younger.

    It remembers what it was shown, so it knows as much of the window as it was read often; of a count that is shown
    once a minute it tells the change of that minute. Any thread may ask.

    Args:
        clock: monotonic seconds.
        counts: at the beginning.
    """

    def __init__(self, window_s: float, clock: Callable[[], float], *counts: float) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = Lock()
        self._readings: deque[tuple[float, tuple[float, ...]]] = deque([(clock(), counts)])

    def change(self, *counts: float) -> Change:
        now_s, readings = self._clock(), self._readings
        with self._lock:
            while len(readings) > 1 and readings[1][0] <= now_s - self._window_s:
                readings.popleft()
            since_s, before = readings[0]
            if now_s - readings[-1][0] >= self._window_s * _RESOLUTION:
                readings.append((now_s, counts))
        return Change(tuple(now - then for now, then in zip(counts, before, strict=True)), now_s - since_s)


class BusyTime:
    """How long something has been busy, from looks at it: what a look finds is taken for the time since the last one.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at_s = clock()
        self.total_s = 0.0

    def look(self, busy: bool) -> None:
        now_s = self._clock()
        if busy:
            self.total_s += now_s - self._looked_at_s
        self._looked_at_s = now_s
