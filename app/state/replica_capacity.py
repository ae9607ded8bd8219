"""What one replica can do, and how long one takes to come: learned from those that run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from app.state.scaling_inputs import EngineStats

_LEARN_S = 20.0
_PRIOR_TRUST = 4.0
_LEAST_BUSY_RATIO = 0.5
_LEAST_TOKENS_PER_S = 1.0
_START_WEIGHT = 0.5


class ReplicaCapacity:
    """Tokens per second that a full replica computes.

    A replica with a small batch is busy all the time and still far from its capacity, so it can only show that the
    capacity is higher than believed. One that makes requests wait, or holds the concurrency it is tuned for, shows what
    it is.

    Args:
        prior: tokens per second believed beforehand, within a factor of four; None believes nothing.
        full_at: sequences with which a replica counts as full.
    """

    def __init__(self, prior: float | None, full_at: int) -> None:
        self._prior = prior
        self._full_at = full_at
        self._seen: float | None = None
        self._proven = prior is not None

    @property
    def tokens_per_s(self) -> float | None:
        """None before anything has been computed. A lower bound until `proven`."""
        return self._prior if self._seen is None else self._bounded(self._seen)

    @property
    def proven(self) -> bool:
        """It may be relied on to ask for more replicas."""
        return self._proven

    def learn(self, replicas: Iterable[EngineStats], elapsed_s: float) -> None:
        for stats in replicas:
            if stats.busy_ratio >= _LEAST_BUSY_RATIO and stats.computed_tokens_per_s >= _LEAST_TOKENS_PER_S:
                self._learn(stats, elapsed_s)

    def _learn(self, stats: EngineStats, elapsed_s: float) -> None:
        shown = stats.computed_tokens_per_s / min(1.0, stats.busy_ratio)
        is_full = stats.waiting_sequences >= 1 or stats.running_sequences >= self._full_at
        believed = self.tokens_per_s
        if believed is None or (is_full and not self._proven):
            self._seen = max(shown, believed or 0.0)
        elif is_full or shown > believed:
            self._seen = believed + -math.expm1(-elapsed_s / _LEARN_S) * (shown - believed)
        self._proven = self._proven or is_full

    def _bounded(self, tokens_per_s: float) -> float:
        if self._prior is None:
            return tokens_per_s
        return min(max(tokens_per_s, self._prior / _PRIOR_TRUST), self._prior * _PRIOR_TRUST)


class StartTime:
    """Seconds from asking for a replica until it reports.

    One that waits for a machine takes any time: what is much longer than believed beforehand teaches no more.
    """

    def __init__(self, prior_s: float) -> None:
        self.seconds = prior_s
        self._longest_s = _PRIOR_TRUST * prior_s
        self._since_s: float | None = None

    def observe(self, coming: int, now_s: float) -> None:
        """Replicas that were asked for and do not report yet."""
        if coming > 0:
            self._since_s = now_s if self._since_s is None else self._since_s
        elif self._since_s is not None:
            taken_s = min(self._longest_s, now_s - self._since_s)
            self.seconds += _START_WEIGHT * (taken_s - self.seconds)
            self._since_s = None
