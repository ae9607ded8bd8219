"""What an ingress replica tells of its requests: instruments, and what the autoscaling policy gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from app import metrics
from app.config.telemetry import ObjectivesConfig
from app.decisions.admission import Action
from app.requests import Outcome, Refusal, RequestPath
from app.state.engines import EnginesState
from app.state.lately import Lately
from app.state.scaling_inputs import IngressStats
from app.state.tallies import Labels
from deployments.request_record import RequestRecord
from deployments.telemetry import Telemetry
from deployments.triage import Triaged

OFFERS_WINDOW_S = 10.0
OTHER_OUTCOME = "other"
# Codes of errors that are no refusals, and say something to an operator.
_ERRORS = (
    "engine_failed",
    "engine_timeout",
    "engine_overloaded",
    "no_ready_engine",
    "timeout",
    "invalid_request_error",
    "internal_error",
)
_OUTCOMES = frozenset((*Outcome, *Refusal, *_ERRORS))
_ENGINES = (RequestPath.HOT, RequestPath.COLD)


class IngressTelemetry:
    """Counts requests at their end, as `observe` tells them, and offers at their arrival.

    Args:
        states: of the HOT and COLD engines, as the gate saw them last; read from other threads.
        stale_replicas: of those engines, unheard of for too long.
        assumed_output_tokens: stands for a missing `max_tokens`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        objectives: ObjectivesConfig,
        assumed_output_tokens: int,
        states: Callable[[], Mapping[RequestPath, EnginesState]],
        stale_replicas: Mapping[RequestPath, Callable[[], int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objectives = objectives
        self._assumed_output_tokens = assumed_output_tokens
        self._states = states
        self._offered = {engines: [0.0, 0.0] for engines in _ENGINES}  # tokens, requests
        self._offers = {engines: Lately(OFFERS_WINDOW_S, clock, 0, 0) for engines in _ENGINES}
        self._make_counters(telemetry)
        self._make_gauges(telemetry, stale_replicas)

    def arrived(self, triaged: Triaged) -> None:
        """A request that is let in or refused next."""
        features = triaged.features
        answer_tokens = features.expected_output_tokens(self._assumed_output_tokens)
        offered = self._offered[triaged.found.path.engines]
        offered[0] += features.sequences * (features.uncached_tokens + answer_tokens)
        offered[1] += 1

    def observe(self, record: RequestRecord) -> None:
        """An `Observer`."""
        path, found = record.path, record.triaged.found
        self._requests.add(1, path, record.outcome if record.outcome in _OUTCOMES else OTHER_OUTCOME)
        self._classifications.add(1, path, found.reason)
        self._count_admission(record)
        if record.routing is not None:
            self._routings.add(1, record.engines, record.routing.reason)
            self._routed_tokens.add(record.triaged.features.prompt_tokens, record.engines)
            self._predicted_tokens.add(record.routing.matched_tokens, record.engines)
            self._waits.observe((record.waited_s,), path)
        if record.ttft_s is not None:
            self._ttft.observe((record.ttft_s,), path)
        if record.duration_s is not None:
            self._durations.observe((record.duration_s,), path)
            # An answer in one piece begins when it is complete.
            began_s = record.duration_s if record.ttft_s is None else record.ttft_s
            if record.outcome == Outcome.ANSWERED and began_s <= self._objectives.of(path):
                self._in_time.add(1, path)

    def stats(self) -> dict[str, float]:
        """`IngressStats` as Serve carries it."""
        told: dict[str, float] = {}
        for engines, state in self._states().items():
            change = self._offers[engines].change(*self._offered[engines])
            told[f"{engines}_offered_tokens_per_s"] = change.per_s(0)
            told[f"{engines}_offered_requests_per_s"] = change.per_s(1)
            told[f"{engines}_queued_requests"] = float(state.waiting)
            told[f"{engines}_queued_tokens"] = float(state.waiting_tokens)
        checked: dict[str, float] = msgspec.to_builtins(IngressStats(**told))
        return checked

    def _count_admission(self, record: RequestRecord) -> None:
        decision = record.admission
        if decision is None:  # a quota refused it before
            self._admissions.add(1, record.path, record.engines, Action.REFUSE, record.outcome)
        else:
            self._admissions.add(1, record.path, decision.engines, decision.action, decision.reason)

    def _make_counters(self, telemetry: Telemetry) -> None:
        paths: list[Labels] = [(path,) for path in RequestPath]
        engines: list[Labels] = [(name,) for name in _ENGINES]
        answered: list[Labels] = [(path, Outcome.ANSWERED) for path in RequestPath]
        self._requests = telemetry.tally(metrics.REQUESTS, *answered)
        self._in_time = telemetry.tally(metrics.REQUESTS_WITHIN_OBJECTIVE, *paths)
        self._classifications = telemetry.tally(metrics.CLASSIFICATIONS)
        self._admissions = telemetry.tally(metrics.ADMISSIONS)
        self._routings = telemetry.tally(metrics.ROUTING_DECISIONS)
        self._routed_tokens = telemetry.tally(metrics.ROUTED_PROMPT_TOKENS, *engines)
        self._predicted_tokens = telemetry.tally(metrics.PREDICTED_HIT_TOKENS, *engines)
        self._waits = telemetry.distribution(metrics.QUEUE_WAIT, *paths)
        self._ttft = telemetry.distribution(metrics.TTFT, *paths)
        self._durations = telemetry.distribution(metrics.REQUEST_DURATION, *paths)

    def _make_gauges(self, telemetry: Telemetry, stale: Mapping[RequestPath, Callable[[], int]]) -> None:
        def of_each(value: Callable[[EnginesState], float]) -> Callable[[], dict[Labels, float]]:
            return lambda: {(engines,): value(state) for engines, state in self._states().items()}

        telemetry.observe(metrics.QUEUED_REQUESTS, of_each(lambda state: state.waiting))
        telemetry.observe(metrics.QUEUED_TOKENS, of_each(lambda state: state.waiting_tokens))
        telemetry.observe(metrics.PRESSURE_LEVEL, of_each(lambda state: state.level.value))
        telemetry.observe(metrics.CIRCUIT_OPEN, of_each(lambda state: float(not state.takes_requests)))
        telemetry.observe(metrics.STALE_REPLICAS, lambda: {(engines,): count() for engines, count in stale.items()})
