"""Ratios of two servers under one schedule, with a confidence interval from resampling."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.records import RequestRecord
from loadtest.summary import quantile

Metric = Callable[[Sequence[RequestRecord]], float | None]
RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class PairedBlock:
    """Two runs of one schedule: `ours[i]` and `theirs[i]` are the same request."""

    ours: tuple[RequestRecord, ...]
    theirs: tuple[RequestRecord, ...]

    @classmethod
    def of(cls, ours: Sequence[RequestRecord], theirs: Sequence[RequestRecord]) -> PairedBlock:
        """Pairs by key. Raises ValueError when the two runs offered different requests."""
        by_key = {record.key: record for record in theirs}
        if len(ours) != len(theirs) or {record.key for record in ours} != set(by_key):
            raise ValueError(f"the runs offered different requests: {len(ours)} and {len(theirs)}; use one schedule")
        return cls(tuple(ours), tuple(by_key[record.key] for record in ours))


@dataclass(frozen=True)
class Ratio:
    """`ours / theirs` of one metric. `value` is None where either side has nothing to measure or theirs is zero.

    Args:
        low, high: bounds of the 95 % interval; None with too few resamples that can be measured.
    """

    ours: float | None
    theirs: float | None
    value: float | None
    low: float | None = None
    high: float | None = None


def ratio_of(blocks: Sequence[PairedBlock], metric: Metric, seed: int = 0, resamples: int = RESAMPLES) -> Ratio:
    """The ratio over all blocks and its interval.

    Blocks are drawn with replacement, then requests within them: the spread between blocks (a warm machine, another
    neighbour) counts as well as that between requests. A request is drawn for both sides at once.
    """
    ours, theirs = _measure(blocks, metric)
    value = _divide(ours, theirs)
    rng = random.Random(seed)  # noqa: S311 - statistics, not secrets
    ratios = []
    for _ in range(resamples):
        drawn = [_resample(rng, block) for block in rng.choices(blocks, k=len(blocks))] if blocks else []
        ratios.append(_divide(*_measure(drawn, metric)))
    return Ratio(ours, theirs, value, *_interval(ratios))


def ratio_of_means(pairs: Sequence[tuple[float, float]], seed: int = 0, resamples: int = RESAMPLES) -> Ratio:
    """Of values measured in pairs, ours first: mean over mean, and its interval from drawing pairs with replacement."""
    rng = random.Random(seed)  # noqa: S311 - statistics, not secrets
    ours, theirs = (fmean(side) for side in zip(*pairs, strict=True))
    ratios = []
    for _ in range(resamples):
        our_sum, their_sum = (sum(side) for side in zip(*rng.choices(pairs, k=len(pairs)), strict=True))
        ratios.append(_divide(our_sum, their_sum))
    return Ratio(ours, theirs, _divide(ours, theirs), *_interval(ratios))


def _interval(ratios: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Of resamples; those without a value are left out, and half of them at most."""
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios) / 2:
        return None, None
    tail = (1 - CONFIDENCE) / 2
    return quantile(known, tail), quantile(known, 1 - tail)


def _measure(blocks: Sequence[PairedBlock], metric: Metric) -> tuple[float | None, float | None]:
    ours = [record for block in blocks for record in block.ours]
    theirs = [record for block in blocks for record in block.theirs]
    return metric(ours), metric(theirs)


def _resample(rng: random.Random, block: PairedBlock) -> PairedBlock:
    chosen = rng.choices(range(len(block.ours)), k=len(block.ours)) if block.ours else []
    return PairedBlock(tuple(block.ours[i] for i in chosen), tuple(block.theirs[i] for i in chosen))


def _divide(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs
