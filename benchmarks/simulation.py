"""Runs a workload against modelled engines under one policy, event by event, and says what came of it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from app.state.pulse import CacheChange, ReplicaLoad
from benchmarks.engine_model import SimulatedEngine, SimulatedRequest
from benchmarks.policies import Clock, Policy
from benchmarks.workloads import Arrival

REPORT_PERIOD_S = 0.1
REPORT_DELAY_S = 0.1


@dataclass(frozen=True)
class Result:
    """Ratios are 0 to 1; `max_over_mean_load` compares the tokens that each replica prefilled and decoded."""

    hit_ratio: float
    max_over_mean_load: float
    ttft_p50_s: float
    ttft_p95_s: float


class Simulation:
    """One run. Events at the same time come in the order arrival, engine, report."""

    def __init__(self, engines: Sequence[SimulatedEngine], policy: Policy, clock: Clock) -> None:
        self._engines = engines
        self._policy = policy
        self._clock = clock
        self._due: list[tuple[float, int]] = []  # (time, engine); those that an engine has outdated are skipped
        self._on_the_way: deque[tuple[float, int, CacheChange, ReplicaLoad]] = deque()
        self._next_report_s = REPORT_PERIOD_S
        self._finished: list[SimulatedRequest] = []

    def run(self, arrivals: Sequence[Arrival], progress: Callable[[], None] = lambda: None) -> Result:
        """All arrivals to their end. `progress` is called after each arrival."""
        for arrival in arrivals:
            self._until(arrival.at_s)
            self._clock.now_s = arrival.at_s
            request = SimulatedRequest(arrival.at_s, arrival.prompt_tokens, arrival.output_tokens, arrival.hashes())
            number = self._policy.choose(request)
            self._engines[number].submit(request, arrival.at_s)
            self._schedule(number)
            progress()
        while any(engine.in_flight for engine in self._engines):
            self._until(self._clock.now_s + 1.0)
        return self._result()

    def _until(self, end_s: float) -> None:
        while True:
            engine_s = self._due[0][0] if self._due else end_s
            report_s = self._next_report_s if self._policy.wants_reports else end_s
            if min(engine_s, report_s) >= end_s:
                self._clock.now_s = end_s
                return
            if engine_s <= report_s:
                self._advance(*heapq.heappop(self._due))
            else:
                self._clock.now_s = report_s
                self._report()

    def _schedule(self, number: int) -> None:
        next_s = self._engines[number].next_event_s
        if next_s is not None:
            heapq.heappush(self._due, (next_s, number))

    def _advance(self, at_s: float, number: int) -> None:
        engine = self._engines[number]
        if engine.next_event_s != at_s:
            return
        self._clock.now_s = at_s
        engine.advance()
        self._schedule(number)
        for request in engine.finished:
            self._policy.ended(request)
            request.hashes, request.held = (), []
        self._finished += engine.finished
        engine.finished.clear()

    def _report(self) -> None:
        """Engines tell what changed; what they told a while ago arrives."""
        now = self._next_report_s
        for number, engine in enumerate(self._engines):
            self._on_the_way.append((now, number, engine.cache.net_change(), engine.load()))
        while self._on_the_way and self._on_the_way[0][0] <= now - REPORT_DELAY_S:
            self._policy.report(*self._on_the_way.popleft()[1:])
        self._next_report_s = now + REPORT_PERIOD_S

    def _result(self) -> Result:
        loads = [engine.computed_tokens for engine in self._engines]
        ttft = quantiles([r.first_token_s - r.arrived_s for r in self._finished], n=100)
        return Result(
            hit_ratio=sum(r.cached_tokens for r in self._finished) / sum(r.prompt_tokens for r in self._finished),
            max_over_mean_load=max(loads) * len(loads) / sum(loads),
            ttft_p50_s=ttft[49],
            ttft_p95_s=ttft[94],
        )
