"""How many engines each path should have, and why."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.config.scaling import ScalingConfig
from app.requests import RequestPath
from app.state.fleet import Fleet, PathFleet
from app.state.path_load import LoadGauge, PathLoad
from app.state.shared_budget import SharedBudget

_LONGEST_WINDOW = 4  # consolidation windows


class ScalingReason(StrEnum):
    STEADY = "steady"
    WARMING = "warming"  # replicas that have been asked for are enough, and do not all take part yet
    DEMAND = "demand"  # more arrives than the replicas should take
    QUEUE = "queue"  # work waits that they would not finish in time
    CACHE_PRESSURE = "cache_pressure"  # KV usage above its target, or preemptions
    HIT_RATIO = "hit_ratio"  # the cache hits less because more requests share it
    FORECAST = "forecast"  # more will arrive before a replica could be ready
    COLLAPSE_HOLD = "collapse_hold"  # the cache hits less, and no more requests come: more replicas would hold less
    CONSOLIDATION = "consolidation"  # the rest could have carried the load for the whole window
    STALE_HOLD = "stale_hold"  # reports are missing
    BOUNDS = "bounds"  # of the configuration
    BUDGET = "budget"  # of devices, shared by the paths

    @property
    def holds(self) -> bool:
        """Something keeps the number of replicas from what it would be."""
        return self in _HOLDS


_HOLDS = frozenset((ScalingReason.COLLAPSE_HOLD, ScalingReason.STALE_HOLD, ScalingReason.BOUNDS, ScalingReason.BUDGET))


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Metrics, logs and the status page carry `reason` unchanged; `details` are the figures behind it."""

    path: RequestPath
    desired_replicas: int
    reason: ScalingReason
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas that one signal asks for."""

    replicas: int
    reason: ScalingReason


def need(load: PathLoad, path: PathFleet, rules: ScalingConfig) -> Need:
    """What the strongest signal asks for now.

    Work that waits and caches under pressure ask for more only while none is coming: the one that comes is the answer.
    """
    needs = [Need(0, ScalingReason.STEADY), *_pressure_needs(load, path, rules)]
    if load.capacity_proven and load.capacity_tokens_per_s:
        needs += _demand_needs(load, path, load.capacity_tokens_per_s, rules)
    return max(needs, key=lambda each: each.replicas)


def _pressure_needs(load: PathLoad, path: PathFleet, rules: ScalingConfig) -> list[Need]:
    needs = [Need(_whole(load.kv_usage_replicas / rules.target_kv_usage_ratio), ScalingReason.CACHE_PRESSURE)]
    if path.coming == 0 and load.preemptions_per_s >= rules.preemptions_per_s:
        needs.append(Need(load.replicas + 1, ScalingReason.CACHE_PRESSURE))
    return [*needs, Need(_whole(load.replicas_for_hits), ScalingReason.HIT_RATIO)]


def _demand_needs(load: PathLoad, path: PathFleet, capacity: float, rules: ScalingConfig) -> list[Need]:
    needs = []
    if load.watched_s >= rules.smoothing_s:  # before, the average is one reading
        enough = load.demand_tokens_per_s / (capacity * rules.target_utilization)
        needs.append(Need(_whole(enough), ScalingReason.DEMAND))
    if path.coming == 0:
        spare = max(0.0, capacity * load.replicas - load.demand_tokens_per_s)
        left_tokens = max(0.0, load.backlog_tokens - spare * load.start_time_s)  # when a new replica could help
        draining = load.demand_tokens_per_s + left_tokens / rules.queue_drain_s if left_tokens else 0.0
        needs.append(Need(_whole(draining / capacity), ScalingReason.QUEUE))
    if load.forecast is not None:
        needs.append(Need(_whole(load.forecast.upper / (capacity * rules.target_utilization)), ScalingReason.FORECAST))
    return needs


def keeping(load: PathLoad, rules: ScalingConfig) -> int:
    """Replicas that the load could be left to: `load * N / (N - 1)` stays under the targets with a margin to spare."""
    room = 1 - rules.consolidation_margin
    replicas = max(load.kv_usage_replicas / (rules.target_kv_usage_ratio * room), load.replicas_for_hits)
    tokens = max(load.demand_tokens_per_s, load.forecast.upper if load.forecast else 0.0)
    tokens += load.backlog_tokens / rules.queue_drain_s
    if load.capacity_tokens_per_s:
        replicas = max(replicas, tokens / (load.capacity_tokens_per_s * rules.target_utilization * room))
    if load.preemptions_per_s >= rules.preemptions_per_s or load.collapsed:
        replicas = max(replicas, load.replicas)
    return _whole(replicas)


def _whole(replicas: float) -> int:
    return math.ceil(replicas - 1e-6)


class ConsolidationWindow:
    """The most replicas that were needed at any time of the window. It is known only after a whole window.

    A consolidation that had to be taken back soon doubles the window, up to fourfold: load that swings around a limit
    then settles above it.
    """

    def __init__(self, window_s: float) -> None:
        self._shortest_s = self._window_s = window_s
        self._peaks: deque[tuple[float, int]] = deque()  # falling, oldest first
        self._since_s: float | None = None
        self._shrunk_s = -math.inf

    def add(self, replicas: int, now_s: float) -> None:
        self._since_s = now_s if self._since_s is None else self._since_s
        while self._peaks and self._peaks[-1][1] <= replicas:
            self._peaks.pop()
        self._peaks.append((now_s, replicas))
        while self._peaks[0][0] < now_s - self._window_s:
            self._peaks.popleft()

    def forget(self) -> None:
        """Something was not seen: the window begins anew."""
        self._peaks.clear()
        self._since_s = None

    def peak(self, now_s: float) -> int | None:
        if self._since_s is None or now_s - self._since_s < self._window_s:
            return None
        return self._peaks[0][1]

    def resized(self, grown: bool, now_s: float) -> None:
        if not grown:
            self._shrunk_s = now_s
        elif now_s - self._shrunk_s <= 2 * self._window_s:
            self._window_s = min(2 * self._window_s, _LONGEST_WINDOW * self._shortest_s)
        else:
            self._window_s = self._shortest_s


class PathScaler:
    """One path's decisions, before the budget."""

    def __init__(self, path: RequestPath, rules: ScalingConfig, full_at: int) -> None:
        self._path = path
        self._rules = rules
        self._gauge = LoadGauge(path, rules, full_at)
        self._window = ConsolidationWindow(rules.consolidation_window_s)

    def decide(self, fleet: Fleet, now_s: float) -> ScalingDecision:
        path = fleet.paths[self._path]
        load = self._gauge.observe(fleet, now_s)
        if load is None:
            self._window.forget()
            wanted = Need(path.target, ScalingReason.WARMING if not path.reports else ScalingReason.STALE_HOLD)
        else:
            wanted = self._wanted(load, path, now_s)
        bounded = min(max(wanted.replicas, path.least), path.most)
        reason = wanted.reason if bounded == wanted.replicas else ScalingReason.BOUNDS
        return ScalingDecision(self._path, bounded, reason, self._details(load, path))

    def settled(self, before: int, after: int, now_s: float) -> None:
        """What has become of a decision."""
        if after != before:
            self._window.resized(after > before, now_s)

    def _wanted(self, load: PathLoad, path: PathFleet, now_s: float) -> Need:
        if load.complete:
            self._window.add(keeping(load, self._rules), now_s)
        else:
            self._window.forget()
        asked = need(load, path, self._rules)
        if asked.replicas > path.target:
            if load.collapsed and asked.reason is not ScalingReason.CACHE_PRESSURE:
                return Need(path.target, ScalingReason.COLLAPSE_HOLD)
            return asked
        if not load.complete:
            warming = path.running < path.target or len(path.reports) < path.running
            return Need(path.target, ScalingReason.WARMING if warming else ScalingReason.STALE_HOLD)
        peak = self._window.peak(now_s)
        if peak is not None and max(peak, path.least) < path.target and path.coming == 0:
            return Need(max(peak, path.least), ScalingReason.CONSOLIDATION)
        return Need(path.target, ScalingReason.WARMING if path.coming else ScalingReason.STEADY)

    def _details(self, load: PathLoad | None, path: PathFleet) -> dict[str, float]:
        details: dict[str, float] = {"running": path.running, "target": path.target, "reporting": len(path.reports)}
        if load is None:
            return details
        details |= {
            "demand_tokens_per_s": load.demand_tokens_per_s,
            "backlog_tokens": load.backlog_tokens,
            "kv_usage_ratio": load.kv_usage_replicas / load.replicas,
            "preemptions_per_s": load.preemptions_per_s,
            "start_time_s": load.start_time_s,
        }
        if load.capacity_tokens_per_s is not None:
            details["capacity_tokens_per_s"] = load.capacity_tokens_per_s
        if load.forecast is not None:
            details["forecast_tokens_per_s"] = load.forecast.upper
        return details


class FleetScaler:
    """All paths' decisions, under one budget.

    Args:
        full_at: sequences with which a replica of a path counts as full.
    """

    def __init__(self, rules: ScalingConfig, full_at: Mapping[RequestPath, int], budget: SharedBudget) -> None:
        self._budget = budget
        self._scalers = {path: PathScaler(path, rules, sequences) for path, sequences in full_at.items()}

    def decide(self, fleet: Fleet, now_s: float) -> dict[RequestPath, ScalingDecision]:
        """What each path should have. The caller brings it about, or, in a dry run, does not.

        Args:
            now_s: of a clock that tells the time of day; reports' ages are of the same.
        """
        wishes = {path: self._scalers[path].decide(fleet, now_s) for path in fleet.paths}
        least = {path: fleet.paths[path].least for path in wishes}
        ceilings = self._budget.ceilings({path: wish.desired_replicas for path, wish in wishes.items()}, least)
        decisions = {path: _within(wish, ceilings[path], least[path]) for path, wish in wishes.items()}
        for path, decision in decisions.items():
            self._scalers[path].settled(fleet.paths[path].target, decision.desired_replicas, now_s)
        return decisions


def _within(wish: ScalingDecision, ceiling: int, least: int) -> ScalingDecision:
    desired = max(least, min(wish.desired_replicas, ceiling))
    if desired == wish.desired_replicas:
        return wish
    return ScalingDecision(wish.path, desired, ScalingReason.BUDGET, wish.details)
