"""Tells a cache that collapses from one that more requests wear out."""

from __future__ import annotations

import math
from typing import NamedTuple

from app.config.scaling import CollapseConfig

_USUAL_S = 900.0
_MOST_RISE = 2.0
_LEAST_REQUESTS_PER_S = 1e-3
_EVIDENCE_S = 90.0  # hit ratios are of the last minute: they tell later than costs why requests have become dearer


class Smoothed:
    """A value averaged over about `over_s`. It begins with the first one."""

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self.value: float | None = None

    def add(self, value: float, elapsed_s: float) -> float:
        before = value if self.value is None else self.value
        self.value = before - math.expm1(-elapsed_s / self._over_s) * (value - before)
        return self.value


class Moment(NamedTuple):
    """One path now. `hit_ratio` is None without lookups."""

    requests_per_s: float
    tokens_per_s: float
    replicas: int
    hit_ratio: float | None


class _Usual:
    """What a path has been like for a quarter of an hour."""

    def __init__(self) -> None:
        self.requests, self.tokens, self.replicas, self.hits = (Smoothed(_USUAL_S) for _ in range(4))

    def learn(self, now: Moment, elapsed_s: float) -> None:
        self.requests.add(now.requests_per_s, elapsed_s)
        self.tokens.add(now.tokens_per_s, elapsed_s)
        self.replicas.add(now.replicas, elapsed_s)
        if now.hit_ratio is not None:
            self.hits.add(now.hit_ratio, elapsed_s)


class CacheTrend:
    """Compares a path's cache with what is usual. What is usual is not learned while it hits less."""

    def __init__(self, rules: CollapseConfig, smoothing_s: float) -> None:
        self._rules = rules
        self._requests, self._tokens, self._hits = (Smoothed(smoothing_s) for _ in range(3))
        self._usual = _Usual()
        self._fallen_since_s: float | None = None
        self._dearer_since_s: float | None = None
        self.collapsed = False  # it hits less, or seems to, and no more requests come
        self.wanted_replicas = 0.0  # for as much cache per request as usual, where it hits less as more requests come

    def observe(self, now: Moment, now_s: float, elapsed_s: float) -> None:
        requests = self._requests.add(now.requests_per_s, elapsed_s)
        tokens = self._tokens.add(now.tokens_per_s, elapsed_s)
        if now.hit_ratio is not None:
            self._hits.add(now.hit_ratio, elapsed_s)
        self._fallen_since_s = _since(self._fallen_since_s, self._has_fallen(), now_s)
        if self._fallen_since_s is not None and now_s - self._fallen_since_s > self._rules.hold_s:
            self._usual, self._fallen_since_s = _Usual(), None
        usual_requests = self._usual.requests.value or 0.0
        rise = min(_MOST_RISE, requests / usual_requests) if usual_requests > _LEAST_REQUESTS_PER_S else 1.0
        more = rise > 1 + self._rules.demand_rise
        dearer = not more and tokens * usual_requests > (1 + self._rules.demand_rise) * requests * self._usual_tokens
        self._dearer_since_s = _since(self._dearer_since_s, dearer and self._can_fall(), now_s)
        suspected = self._dearer_since_s is not None and now_s - self._dearer_since_s < _EVIDENCE_S
        fallen = self._fallen_since_s is not None
        self.collapsed = not more and (fallen or suspected)
        self.wanted_replicas = rise * (self._usual.replicas.value or 0.0) if fallen and more else 0.0
        if not fallen and not suspected:
            self._usual.learn(now, elapsed_s)

    @property
    def _usual_tokens(self) -> float:
        return self._usual.tokens.value or 0.0

    def _can_fall(self) -> bool:
        return (self._usual.hits.value or 0.0) >= self._rules.hit_ratio_drop

    def _has_fallen(self) -> bool:
        hits, usual = self._hits.value, self._usual.hits.value
        return hits is not None and usual is not None and usual - hits >= self._rules.hit_ratio_drop


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s
