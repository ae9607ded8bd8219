"""Engines that need time to start and queue what they cannot compute, under the policy's own decisions.

Work is a number of tokens: what arrives in a step is computed at once where there is capacity, and waits where not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.config.scaling import ScalingConfig
from app.decisions.scaling import FleetScaler, ScalingDecision
from app.requests import RequestPath
from app.state.fleet import Fleet, PathFleet, Report
from app.state.scaling_inputs import EngineStats, IngressStats
from app.state.shared_budget import SharedBudget

HOT, COLD = RequestPath.HOT, RequestPath.COLD
CAPACITY = 1000.0  # tokens per second of one replica
FULL_AT = 16
TOKENS_PER_REQUEST = 500.0
NOON_S = 20_000 * 86_400.0 + 43_200.0


@dataclass
class Engines:
    """One path.

    Args:
        demand: seconds since the start -> tokens per second that arrive.
        expected_ratio: what requests say they need over what they turn out to need.
    """

    demand: Callable[[float], float]
    least: int = 1
    most: int = 8
    running: int = 1
    start_s: float = 60.0
    expected_ratio: float = 1.0
    hit_ratio: Callable[[float], float] | None = None
    kv_usage: Callable[[float], float] | None = None
    requests_per_s: Callable[[float], float] | None = None
    target: int = 0
    backlog: float = 0.0
    longest_wait_s: float = 0.0
    ready_at: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = self.running

    def resize(self, desired: int, now_s: float) -> None:
        if desired != self.target:
            self.targets.append(desired)
        while self.running + len(self.ready_at) < desired:
            self.ready_at.append(now_s + self.start_s)
        while self.running + len(self.ready_at) > desired:
            if self.ready_at:
                self.ready_at.pop()
            else:
                self.running -= 1
        self.target = desired

    def step(self, now_s: float, step_s: float) -> tuple[EngineStats, float, float]:
        """What one replica reports, and tokens and requests per second that arrived."""
        while self.ready_at and self.ready_at[0] <= now_s:
            self.ready_at.pop(0)
            self.running += 1
        arriving = self.demand(now_s)
        capacity = self.running * CAPACITY
        computed = min(capacity, arriving + self.backlog / step_s)
        self.backlog += (arriving - computed) * step_s
        self.longest_wait_s = max(self.longest_wait_s, self.backlog / capacity)
        utilization = computed / capacity
        stats = EngineStats(
            kv_usage_ratio=self.kv_usage(now_s) if self.kv_usage else 0.5 * utilization,
            queued_prefill_tokens=self.backlog / self.running,
            running_sequences=FULL_AT * utilization,
            waiting_sequences=self.backlog / TOKENS_PER_REQUEST / self.running,
            computed_tokens_per_s=computed / self.running,
            busy_ratio=min(1.0, 2 * utilization),  # a small batch keeps an engine busy too
            preemptions_per_s=0.0,
            evicted_blocks_per_s=0.0,
            prefix_hit_ratio=self.hit_ratio(now_s) if self.hit_ratio else None,
        )
        requests = self.requests_per_s(now_s) if self.requests_per_s else arriving / TOKENS_PER_REQUEST
        return stats, arriving * self.expected_ratio, requests


class Simulation:
    """Runs the policy every step. `silent` tells when reports get lost."""

    def __init__(
        self,
        rules: ScalingConfig,
        hot: Engines,
        cold: Engines | None = None,
        budget: SharedBudget | None = None,
        silent: Callable[[float], bool] = lambda now_s: False,
        step_s: float = 1.0,
    ) -> None:
        self._step_s = step_s
        self.engines = {HOT: hot, COLD: cold or Engines(lambda now_s: 0.0)}
        self.now_s = 0.0
        self.decisions: list[ScalingDecision] = []
        self._rules = rules
        self._silent = silent
        self._heard_s = 0.0
        self._last: dict[RequestPath, tuple[EngineStats, float, float]] = {}
        shares = budget or SharedBudget(None, {HOT: 0.3, COLD: 0.7}, lend_shares=False)
        self._scaler = FleetScaler(rules, {HOT: FULL_AT, COLD: FULL_AT}, shares)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += self._step_s
            told = {path: engines.step(self.now_s, self._step_s) for path, engines in self.engines.items()}
            if not self._silent(self.now_s):
                self._last, self._heard_s = told, self.now_s
            decisions = self._scaler.decide(self._fleet(), NOON_S + self.now_s)
            self.decisions += [each for each in decisions.values() if each.path is HOT]
            if not self._rules.dry_run:
                for path, decision in decisions.items():
                    self.engines[path].resize(decision.desired_replicas, self.now_s)

    def _fleet(self) -> Fleet:
        age_s = self.now_s - self._heard_s
        paths = {}
        for path, engines in self.engines.items():
            reports = [Report(self._last[path][0], age_s)] * engines.running if path in self._last else []
            paths[path] = PathFleet(engines.running, engines.target, engines.least, engines.most, reports)
        reports_of_ingress = []
        if self._last:
            (_, hot_tokens, hot_requests), (_, cold_tokens, cold_requests) = self._last[HOT], self._last[COLD]
            stats = IngressStats(
                hot_offered_tokens_per_s=hot_tokens,
                hot_offered_requests_per_s=hot_requests,
                hot_queued_requests=0,
                hot_queued_tokens=0,
                cold_offered_tokens_per_s=cold_tokens,
                cold_offered_requests_per_s=cold_requests,
                cold_queued_requests=0,
                cold_queued_tokens=0,
            )
            reports_of_ingress = [Report(stats, age_s)]
        return Fleet(paths, 1, reports_of_ingress)
