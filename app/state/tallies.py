"""What has been counted so far, by label values: cheap to add to, read at leisure, from another thread too."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Labels: TypeAlias = tuple[str, ...]  # values, in the order of the metric's own `labels`


class Tally:
    """A counter. It only rises.

    Args:
        known: label values that count from zero on; others appear with their first event, and a rate over them misses
            that one.
    """

    def __init__(self, *known: Labels) -> None:
        self._counts: dict[Labels, float] = dict.fromkeys(known, 0)

    def add(self, amount: float, *labels: str) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def read(self) -> Mapping[Labels, float]:
        return self._counts.copy()  # in one go: another thread may add


@dataclass(frozen=True, slots=True)
class Spread:
    """What a distribution has seen.

    Args:
        counts: values in each bucket, not cumulative; the last one has no upper bound.
        total: sum of the values.
    """

    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Distribution:
    """A histogram: how many values lie up to each bound, that bound included.

    Args:
        bounds: rising upper bounds of the buckets.
    """

    def __init__(self, bounds: tuple[float, ...], *known: Labels) -> None:
        self.bounds = bounds
        self._counts: dict[Labels, list[int]] = {}
        self._totals: dict[Labels, float] = {}
        for labels in known:
            self.observe((), *labels)

    def observe(self, values: Iterable[float], *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self.bounds) + 1)
            self._totals[labels] = 0.0
        bounds, total = self.bounds, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self._totals[labels] += total

    def read(self) -> Mapping[Labels, Spread]:
        return {
            labels: Spread(tuple(counts), self._totals.get(labels, 0.0))
            for labels, counts in self._counts.copy().items()
        }
