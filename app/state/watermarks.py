"""Levels of pressure with hysteresis, and one signal's memory of them."""

from __future__ import annotations

from enum import IntEnum

from app.config.admission import Marks


class Level(IntEnum):
    """What pressure asks for; each level includes the ones below."""

    NORMAL = 0
    ALERT = 1
    REFUSE_LONG = 2
    COMPRESS = 3
    SHED = 4


def next_level(current: Level, value: float | None, marks: Marks) -> Level:
    """The level after a reading: entered at its mark, left `leave_below` under it, kept while the value is unknown."""
    if value is None:
        return current
    levels = ((Level.ALERT, marks.alert), (Level.REFUSE_LONG, marks.refuse_long), (Level.COMPRESS, marks.compress))
    return max(
        (level for level, mark in levels if value >= mark or (level <= current and value > mark - marks.leave_below)),
        default=Level.NORMAL,
    )


def next_crowded(current: bool, waiting: float | None, enter: float, leave: float) -> bool:
    """Whether a queue counts as too long: from `enter` on, until it is down to `leave`; kept while unknown."""
    if waiting is None:
        return current
    return waiting > leave if current else waiting >= enter


class Sustained:
    """For how long a condition has held without a break."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def update(self, holds: bool, now_s: float) -> float:
        """Seconds since it began to hold, 0 when it does not."""
        if not holds:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s
