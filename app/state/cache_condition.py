"""How a path's prefix cache is doing, in one word: steady, low, or collapsed against what was usual."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import msgspec

_COLLAPSE = 0.25  # a fall by this much, to a low ratio
_ENOUGH_SECONDS = 30


class Health(StrEnum):
    """UNKNOWN: no replica reports. IDLE: they do, and nobody looks anything up."""

    UNKNOWN = "unknown"
    IDLE = "idle"
    STEADY = "steady"
    LOW = "low"
    COLLAPSED = "collapsed"


class Condition(msgspec.Struct, frozen=True):
    """`usual_hit_ratio` is the median of the last minutes; None while there are too few of them."""

    health: Health
    hit_ratio: float | None = None
    usual_hit_ratio: float | None = None


def condition_of(
    hit_ratio: float | None, recent: Sequence[float | None], low_hit_ratio: float, *, reports: bool
) -> Condition:
    """Args:
    hit_ratio: now; None without lookups.
    recent: one per second of the last minutes, not reaching into the window that `hit_ratio` is of.
    reports: some replica is not stale.
    """
    known = [ratio for ratio in recent if ratio is not None]
    usual = round(median(known), 4) if len(known) >= _ENOUGH_SECONDS else None
    if hit_ratio is None:
        return Condition(Health.IDLE if reports else Health.UNKNOWN, None, usual)
    if hit_ratio >= low_hit_ratio:
        return Condition(Health.STEADY, hit_ratio, usual)
    collapsed = usual is not None and usual - hit_ratio >= _COLLAPSE
    return Condition(Health.COLLAPSED if collapsed else Health.LOW, hit_ratio, usual)
