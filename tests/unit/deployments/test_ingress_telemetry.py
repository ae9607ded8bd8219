"""What becomes of requests, counted once each, under labels that are few."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from app import metrics
from app.config.telemetry import ObjectivesConfig
from app.decisions.admission import Action, AdmissionDecision
from app.errors import ApiError
from app.metrics import Metric
from app.requests import Outcome, Refusal, RequestPath
from app.state.watermarks import Level
from deployments.ingress_telemetry import OTHER_OUTCOME, IngressTelemetry
from deployments.request_record import RequestRecord
from deployments.telemetry import Telemetry
from tests.gates import CLIENT, COLD, HOT, WARM, Door, triaged
from tests.kept_metrics import Kept
from tests.request_records import record


class Replica:
    def __init__(self) -> None:
        self.door = Door(slots=1, queues={"cold": {"max_requests": 4, "max_tokens": 10_000}})
        self.kept, self.stale = Kept(), 0
        self.telemetry = Telemetry(Resource.get_empty(), [(self.kept, 3600.0)])
        self.measured = IngressTelemetry(
            self.telemetry,
            ObjectivesConfig(hot=1, warm=2, cold=20),
            256,
            lambda: self.door.gate.states,
            {HOT: lambda: self.stale, COLD: lambda: 0},
            self.door.clock,
        )

    def values(self, metric: Metric) -> dict[tuple[Any, ...], Any]:
        self.telemetry.flush()
        points = self.kept.metrics[metric.instrument_name].data.data_points
        return {
            tuple((point.attributes or {})[name] for name in metric.labels): getattr(point, "value", None)
            if not hasattr(point, "count")
            else point.count
            for point in points
        }

    def nonzero(self, metric: Metric) -> dict[tuple[Any, ...], Any]:
        return {labels: value for labels, value in self.values(metric).items() if value}


@pytest.fixture
def replica() -> Any:
    made = Replica()
    yield made
    made.telemetry.shutdown()


def test_an_answered_request_counts_once_everywhere(replica: Replica) -> None:
    replica.measured.observe(record())
    assert replica.nonzero(metrics.REQUESTS) == {("hot", "answered"): 1}
    assert replica.nonzero(metrics.CLASSIFICATIONS) == {("hot", "short_prompt_and_output"): 1}
    assert replica.nonzero(metrics.ADMISSIONS) == {("hot", "hot", "start", "home"): 1}
    assert replica.nonzero(metrics.ROUTING_DECISIONS) == {("hot", "prefix_hit"): 1}
    assert replica.nonzero(metrics.ROUTED_PROMPT_TOKENS) == {("hot",): 100}
    assert replica.nonzero(metrics.PREDICTED_HIT_TOKENS) == {("hot",): 64}
    for histogram in (metrics.QUEUE_WAIT, metrics.TTFT, metrics.REQUEST_DURATION):
        assert replica.nonzero(histogram) == {("hot",): 1}


@pytest.mark.parametrize(
    ("path", "ttft_s", "duration_s", "outcome", "in_time"),
    [
        (HOT, 1.0, 30.0, Outcome.ANSWERED, True),
        (HOT, 1.1, 30.0, Outcome.ANSWERED, False),
        (WARM, 1.1, 30.0, Outcome.ANSWERED, True),
        (COLD, 19.0, 300.0, Outcome.ANSWERED, True),
        (HOT, 0.1, 0.5, Outcome.CANCELLED, False),
        (HOT, None, 0.9, Outcome.ANSWERED, True),
        (HOT, None, 1.1, Outcome.ANSWERED, False),
    ],
)
def test_in_time_is_a_complete_answer_that_began_within_its_paths_objective(
    replica: Replica, path: RequestPath, ttft_s: float | None, duration_s: float, outcome: str, in_time: bool
) -> None:
    replica.measured.observe(record(path, outcome, ttft_s=ttft_s, duration_s=duration_s))
    assert replica.nonzero(metrics.REQUESTS_WITHIN_OBJECTIVE) == ({(path,): 1} if in_time else {})


def test_codes_that_nobody_knows_are_one_outcome(replica: Replica) -> None:
    for code in ("made up", "None", "engine says 17", Refusal.QUEUE_FULL):
        replica.measured.observe(record(outcome=code))
    assert replica.nonzero(metrics.REQUESTS) == {("hot", OTHER_OUTCOME): 3, ("hot", "queue_full"): 1}


def test_a_refusal_has_no_routing_no_wait_and_no_times(replica: Replica) -> None:
    refused = AdmissionDecision(Action.REFUSE, COLD, Refusal.QUEUE_FULL, Level.NORMAL)
    replica.measured.observe(RequestRecord(triaged(COLD), Refusal.QUEUE_FULL, COLD, refused))
    assert replica.nonzero(metrics.ADMISSIONS) == {("cold", "cold", "refuse", "queue_full"): 1}
    assert replica.nonzero(metrics.QUEUE_WAIT) == replica.nonzero(metrics.REQUEST_DURATION) == {}
    assert metrics.ROUTING_DECISIONS.name not in replica.kept.metrics


def test_a_spent_quota_is_a_refusal_of_admission_too(replica: Replica) -> None:
    replica.measured.observe(RequestRecord(triaged(HOT), Refusal.TOKENS_PER_MINUTE, HOT, None))
    assert replica.nonzero(metrics.ADMISSIONS) == {("hot", "hot", "refuse", "tokens_per_minute"): 1}


async def test_who_waits_is_in_the_gauges_after_a_tick(replica: Replica) -> None:
    door = replica.door
    door.admit(HOT)
    door.admit(HOT)
    door.gate.tick()
    assert replica.nonzero(metrics.QUEUED_REQUESTS) == {("hot",): 1}
    assert replica.nonzero(metrics.QUEUED_TOKENS) == {("hot",): 10}
    assert replica.values(metrics.CIRCUIT_OPEN) == {("hot",): 0, ("cold",): 0}
    assert replica.values(metrics.PRESSURE_LEVEL) == {("hot",): 0, ("cold",): 0}
    replica.stale = 2
    assert replica.values(metrics.STALE_REPLICAS) == {("hot",): 2, ("cold",): 0}


async def test_the_policy_gets_what_was_offered_also_what_was_refused(replica: Replica) -> None:
    door = replica.door
    for _ in range(10):
        offered = triaged(COLD, prompt=90, output=None)
        replica.measured.arrived(offered)
        try:
            door.gate.admit(offered, CLIENT, None, {})
        except ApiError:
            continue
    door.gate.tick()
    door.clock.advance(5)
    told = replica.measured.stats()
    assert told["cold_offered_requests_per_s"] == 2
    assert told["cold_offered_tokens_per_s"] == 2 * (90 + 256)
    assert told["hot_offered_tokens_per_s"] == 0
    assert (told["cold_queued_requests"], told["cold_queued_tokens"]) == (4, 4 * 90)
    assert all(type(value) is float for value in told.values())
