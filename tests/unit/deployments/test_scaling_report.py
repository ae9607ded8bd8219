"""What the policy's decisions become on Ray's metrics port."""

from __future__ import annotations

import pytest

from app import metrics
from app.decisions.scaling import ScalingDecision, ScalingReason
from app.requests import RequestPath
from deployments.scaling_report import ScalingMetrics
from tests.fake_ray_metrics import FakeRay

HOT = RequestPath.HOT


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def test_two_applications_are_told_apart(ray: FakeRay) -> None:
    for app_name, replicas in (("a", 1), ("b", 3)):
        ScalingMetrics(app_name, ray).record(ScalingDecision(HOT, replicas, ScalingReason.STEADY), counts=False)
    assert [ray.told[metrics.DESIRED_REPLICAS.name, (name, "hot")] for name in ("a", "b")] == [[1], [3]]


def test_the_first_change_is_an_increase_of_a_counter_that_was_there(ray: FakeRay) -> None:
    """Else `rate` and `increase` would miss it, and there may be none but it for days."""
    told = ScalingMetrics("a", ray)
    told.record(ScalingDecision(HOT, 1, ScalingReason.STEADY), counts=False)
    for replicas in (2, 3):
        told.record(ScalingDecision(HOT, replicas, ScalingReason.DEMAND), counts=True)
    assert ray.told[metrics.SCALING_DECISIONS.name, ("a", "hot", "demand")] == [0, 1, 1]
    assert ray.told[metrics.SCALING_DECISIONS.name, ("a", "hot", "consolidation")] == [0]


def test_what_is_not_known_is_not_told(ray: FakeRay) -> None:
    ScalingMetrics("a", ray).record(ScalingDecision(HOT, 1, ScalingReason.STALE_HOLD), counts=False)
    assert {name for name, _ in ray.told} == {metrics.DESIRED_REPLICAS.name, metrics.SCALING_DECISIONS.name}
