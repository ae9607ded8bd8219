"""From reports of a path's replicas to the load on it: demand, backlog, cache, and what is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.config.scaling import ScalingConfig
from app.requests import RequestPath
from app.state.cache_trend import CacheTrend, Moment, Smoothed
from app.state.fleet import Fleet, Report, Stats
from app.state.forecast import DemandForecast, Forecast
from app.state.replica_capacity import ReplicaCapacity, StartTime
from app.state.scaling_inputs import EngineStats, IngressStats

_CALIBRATE_S = 60.0
_LEAST_ANSWERED, _MOST_ANSWERED = 0.1, 2.0
_CALM_BACKLOG_S = 2.0
_LEAST_REQUESTS_PER_S = 1e-3  # fading rates never become zero; below, they say nothing of a request's size


class Offered(NamedTuple):
    """What arrived for one path at all ingresses, per second, and what waits there."""

    tokens_per_s: float
    requests_per_s: float
    queued_requests: float
    queued_tokens: float


@dataclass(frozen=True, slots=True)
class PathLoad:
    """The load on one path's engines now, as far as it is known.

    Args:
        replicas: that take part, whether or not they have been heard of lately.
        complete: all of them and every ingress have been heard of lately.
        demand_tokens_per_s: to compute, of what arrives, refused or not.
        backlog_tokens: to compute, of what waits in ingresses and engines.
        kv_usage_replicas: KV usage of all, in caches of one replica.
        preemptions_per_s: mean per replica.
        collapsed: the cache hits less than it used to while no more requests come.
        replicas_for_hits: for as much cache per request as usual, where it hits less because more requests come.
        forecast: of the demand when a replica asked for now would be ready; None while not known.
        capacity_tokens_per_s: of one replica; None before anything has been computed.
        capacity_proven: a replica has been full, or the configuration says so.
        start_time_s: what a new replica takes to be ready.
        watched_s: since when demand has been averaged.
    """

    replicas: int
    complete: bool
    demand_tokens_per_s: float
    backlog_tokens: float
    kv_usage_replicas: float
    preemptions_per_s: float
    collapsed: bool
    replicas_for_hits: float
    forecast: Forecast | None
    capacity_tokens_per_s: float | None
    capacity_proven: bool
    start_time_s: float
    watched_s: float


class LoadGauge:
    """Keeps what one path's load can only be told from over time.

    Args:
        full_at: sequences with which a replica counts as full.
    """

    def __init__(self, path: RequestPath, rules: ScalingConfig, full_at: int) -> None:
        self._path = path
        self._rules = rules
        prior = None if rules.capacity_tokens_per_s == "auto" else rules.capacity_tokens_per_s
        self._capacity = ReplicaCapacity(prior, full_at)
        self._demand = Smoothed(rules.smoothing_s)
        self._offered, self._computed = Smoothed(_CALIBRATE_S), Smoothed(_CALIBRATE_S)
        self._answered_ratio = 1.0  # computed tokens over what arriving requests were expected to need
        self._cache = CacheTrend(rules.collapse, rules.smoothing_s)
        self._forecast = DemandForecast(rules.forecast)
        self._start_time = StartTime(rules.replica_start_s)
        self._at_s: float | None = None
        self._since_s: float | None = None

    def observe(self, fleet: Fleet, now_s: float) -> PathLoad | None:
        """None when nothing is known: no engine has been heard of lately."""
        path = fleet.paths[self._path]
        self._start_time.observe(path.coming, now_s)
        fresh = [report.stats for report in _fresh(path.reports, self._rules.stale_after_s)]
        if not fresh:
            return None
        elapsed_s, watched_s = self._times(now_s)
        unheard = len(path.reports) / len(fresh)  # those not heard of are taken to be as the others
        offered, heard_all_ingresses = self._offered_by(fleet)
        self._capacity.learn(fresh, elapsed_s)
        computed = unheard * sum(stats.computed_tokens_per_s for stats in fresh)
        backlog = self._backlog(fresh, unheard, offered)
        if offered is not None:
            calm_tokens = _CALM_BACKLOG_S * len(path.reports) * (self._capacity.tokens_per_s or 0.0)
            self._calibrate(offered.tokens_per_s, computed, elapsed_s, backlog <= calm_tokens)
            tokens_per_s = offered.tokens_per_s * self._answered_ratio
            moment = Moment(offered.requests_per_s, tokens_per_s, len(path.reports), _mean_hit_ratio(fresh))
            self._cache.observe(moment, now_s, elapsed_s)
        # What is computed also drains what waited before, so it stands for what arrives only where nothing else tells.
        arriving = computed if offered is None else offered.tokens_per_s * self._answered_ratio
        demand = self._demand.add(arriving, elapsed_s)
        self._forecast.observe(demand, now_s, self._start_time.seconds)
        return PathLoad(
            replicas=len(path.reports),
            complete=heard_all_ingresses and len(fresh) == path.running,
            demand_tokens_per_s=demand,
            backlog_tokens=backlog,
            kv_usage_replicas=unheard * sum(stats.kv_usage_ratio for stats in fresh),
            preemptions_per_s=sum(stats.preemptions_per_s for stats in fresh) / len(fresh),
            collapsed=self._cache.collapsed,
            replicas_for_hits=self._cache.wanted_replicas,
            forecast=self._forecast.at(now_s, self._start_time.seconds) if self._rules.forecast.enabled else None,
            capacity_tokens_per_s=self._capacity.tokens_per_s,
            capacity_proven=self._capacity.proven,
            start_time_s=self._start_time.seconds,
            watched_s=watched_s,
        )

    def _times(self, now_s: float) -> tuple[float, float]:
        """Seconds since the last observation, and since the first."""
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._since_s = now_s if self._since_s is None else self._since_s
        return elapsed_s, now_s - self._since_s

    def _offered_by(self, fleet: Fleet) -> tuple[Offered | None, bool]:
        fresh = [report.stats for report in _fresh(fleet.ingress_reports, self._rules.stale_after_s)]
        if not fresh:
            return None, False
        unheard = fleet.ingresses / len(fresh)
        parts = [_offered(stats, self._path) for stats in fresh]
        return Offered(*(unheard * sum(values) for values in zip(*parts, strict=True))), len(fresh) == fleet.ingresses

    def _backlog(self, fresh: Sequence[EngineStats], unheard: float, offered: Offered | None) -> float:
        """Prompt tokens that wait, or as much as that many average requests need, where that is more."""
        tokens = unheard * sum(stats.queued_prefill_tokens for stats in fresh)
        requests = unheard * sum(stats.waiting_sequences for stats in fresh)
        if offered is None:
            return tokens
        arriving = offered.requests_per_s > _LEAST_REQUESTS_PER_S
        each = self._answered_ratio * offered.tokens_per_s / offered.requests_per_s if arriving else 0.0
        return max(tokens + offered.queued_tokens, (requests + offered.queued_requests) * each)

    def _calibrate(self, offered: float, computed: float, elapsed_s: float, calm: bool) -> None:
        """Answers are mostly shorter than they may be. What waits has not been computed, so only calm times teach."""
        if not calm or (self._offered.value is None and offered <= 0):
            return
        done = self._computed.add(offered if self._offered.value is None else computed, elapsed_s)
        expected = self._offered.add(offered, elapsed_s)
        self._answered_ratio = min(_MOST_ANSWERED, max(_LEAST_ANSWERED, done / max(expected, 1e-9)))


def _fresh(reports: Sequence[Report[Stats]], stale_after_s: float) -> list[Report[Stats]]:
    return [report for report in reports if report.age_s <= stale_after_s]


def _offered(stats: IngressStats, path: RequestPath) -> Offered:
    if path is RequestPath.HOT:
        return Offered(
            stats.hot_offered_tokens_per_s,
            stats.hot_offered_requests_per_s,
            stats.hot_queued_requests,
            stats.hot_queued_tokens,
        )
    return Offered(
        stats.cold_offered_tokens_per_s,
        stats.cold_offered_requests_per_s,
        stats.cold_queued_requests,
        stats.cold_queued_tokens,
    )


def _mean_hit_ratio(fresh: Sequence[EngineStats]) -> float | None:
    ratios = [stats.prefix_hit_ratio for stats in fresh if stats.prefix_hit_ratio is not None]
    return sum(ratios) / len(ratios) if ratios else None
