"""What Ray is given of what OpenTelemetry collected."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource

from app import metrics
from app.metrics import Kind
from deployments.ray_metrics import RayExporter
from deployments.telemetry import Telemetry
from tests.fake_ray_metrics import FakeRay


class Bridge:
    def __init__(self) -> None:
        self.ray = FakeRay()
        self.telemetry = Telemetry(Resource.get_empty(), [(RayExporter(self.ray), 3600.0)])

    def collect(self) -> None:
        self.telemetry.flush()

    def told(self, name: str, *labels: str) -> list[float]:
        return self.ray.told.get((name, labels), [])


@pytest.fixture
def bridge() -> Any:
    made = Bridge()
    yield made
    made.telemetry.shutdown()


def test_counters_arrive_as_increments_and_begin_with_zero(bridge: Bridge) -> None:
    tally = bridge.telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    for amount in (0, 5, 0, 7):
        tally.add(amount, "hot")
        bridge.collect()
    assert bridge.told(metrics.PROMPT_TOKENS.name, "hot") == [0, 5, 7]


def test_label_values_are_counted_apart(bridge: Bridge) -> None:
    tally = bridge.telemetry.tally(metrics.REQUESTS)
    tally.add(1, "hot", "answered")
    bridge.collect()
    tally.add(2, "hot", "answered")
    tally.add(4, "cold", "cancelled")
    bridge.collect()
    assert bridge.told(metrics.REQUESTS.name, "hot", "answered") == [1, 2]
    assert bridge.told(metrics.REQUESTS.name, "cold", "cancelled") == [4]


def test_a_gauge_that_has_lost_its_value_is_not_told_again(bridge: Bridge) -> None:
    values: dict[tuple[str, ...], float] = {("hot",): 0.5}
    bridge.telemetry.observe(metrics.PREFIX_HIT_RATIO, lambda: values)
    bridge.telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    bridge.collect()
    values.clear()
    bridge.collect()
    assert bridge.told(metrics.PREFIX_HIT_RATIO.name, "hot") == [0.5]


def test_a_histogram_arrives_as_prometheus_has_it(bridge: Bridge) -> None:
    bridge.telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    seen = bridge.telemetry.distribution(metrics.TTFT)
    seen.observe((0.02, 0.07, 500.0), "hot")
    bridge.collect()
    name = metrics.TTFT.name
    cumulative = [bridge.told(f"{name}_bucket", "hot", bound)[-1] for bound in ("0.01", "0.025", "0.1", "80.0", "+Inf")]
    assert cumulative == [0, 1, 2, 2, 3]
    assert bridge.told(f"{name}_sum", "hot") == [pytest.approx(500.09)]
    assert bridge.told(f"{name}_count", "hot") == [3]


def test_every_metric_has_a_name_and_labels_that_ray_takes(bridge: Bridge) -> None:
    for metric in metrics.ALL:
        labels = tuple("x" for _ in metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            bridge.telemetry.distribution(metric, labels)
        else:
            bridge.telemetry.observe(metric, lambda labels=labels: {labels: 1})  # type: ignore[misc]  # mypy infers no lambda with defaults
    bridge.collect()
    told = {name for name, _ in bridge.ray.told}
    for metric in metrics.ALL:
        parts = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        assert {metric.name + part for part in parts} <= told


def test_counters_end_in_total_and_nothing_else_does() -> None:
    """Ray's port adds it to counters that do not have it."""
    for metric in metrics.ALL:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
