"""Instruments, and what readers get of them: OpenTelemetry's own SDK, and a collector over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource

from app import metrics
from app.config.telemetry import TelemetryConfig
from app.metrics import Kind, Metric
from app.state.tallies import Labels
from deployments.telemetry import Telemetry, otlp_endpoint, replica_resource
from tests.kept_metrics import Kept
from tests.otlp_collector import OtlpCollector, plain


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    made = OtlpCollector()
    yield made
    made.close()


def labels_of(metric: Metric) -> Labels:
    return tuple(f"some_{name}" for name in metric.labels)


def telemetry_of_everything(*exporters: otel.MetricExporter) -> Telemetry:
    telemetry = Telemetry(Resource.get_empty(), [(exporter, 3600.0) for exporter in exporters], {"gen_ai.x": "y"})
    for metric in metrics.ALL:
        labels = labels_of(metric)
        if metric.kind is Kind.HISTOGRAM:
            telemetry.distribution(metric).observe((0.02, 0.02, 3.0), *labels)
        elif metric.kind is Kind.COUNTER:
            telemetry.tally(metric).add(3, *labels)
        else:
            telemetry.observe(metric, lambda labels=labels: {labels: 0.25})  # type: ignore[misc]  # mypy infers no lambda with defaults
    return telemetry


def test_every_metric_becomes_the_instrument_that_it_says() -> None:
    kept = Kept()
    telemetry_of_everything(kept).shutdown()
    assert len(kept.metrics) == len(metrics.ALL)
    kinds = {Kind.COUNTER: otel.Sum, Kind.GAUGE: otel.Gauge, Kind.HISTOGRAM: otel.Histogram}
    for metric in metrics.ALL:
        made = kept.metrics[metric.instrument_name]
        (point,) = made.data.data_points
        assert isinstance(made.data, kinds[metric.kind])
        assert (made.unit, made.description) == (metric.unit, metric.help)
        assert set(metric.labels) <= set(point.attributes or ())


def test_counters_are_cumulative_and_only_rise() -> None:
    kept = Kept()
    telemetry_of_everything(kept).shutdown()
    data = kept.metrics[metrics.REQUESTS.name].data
    assert isinstance(data, otel.Sum)
    assert data.is_monotonic and data.aggregation_temporality is otel.AggregationTemporality.CUMULATIVE
    assert [point.value for point in data.data_points] == [3]


def test_a_histogram_is_what_the_sdk_would_have_made_of_the_same_values() -> None:
    """Compared with a real one, fed one value at a time."""
    from opentelemetry.sdk.metrics import MeterProvider

    values = [0.001, 0.01, 0.0100001, 0.3, 100.0]
    kept, reader = Kept(), otel.InMemoryMetricReader()
    telemetry = Telemetry(Resource.get_empty(), [(kept, 3600.0)])
    telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    telemetry.distribution(metrics.QUEUE_WAIT).observe(values, "hot")
    telemetry.shutdown()
    real = (
        MeterProvider([reader])
        .get_meter("x")
        .create_histogram("x", explicit_bucket_boundaries_advisory=list(metrics.QUEUE_WAIT.bounds))
    )
    for value in values:
        real.record(value, {"path": "hot"})
    collected = reader.get_metrics_data()
    assert collected is not None
    (wanted,) = collected.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    (made,) = kept.metrics[metrics.QUEUE_WAIT.name].data.data_points
    for field in ("count", "sum", "bucket_counts", "explicit_bounds", "attributes"):
        assert getattr(made, field) == getattr(wanted, field), field


def test_a_gauge_without_a_value_is_left_out() -> None:
    kept = Kept()
    telemetry = Telemetry(Resource.get_empty(), [(kept, 3600.0)])
    telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    telemetry.observe(metrics.PREFIX_HIT_RATIO, dict)
    telemetry.shutdown()
    assert metrics.PREFIX_HIT_RATIO.name not in kept.metrics
    assert metrics.PROMPT_TOKENS.name in kept.metrics


def test_a_reading_that_fails_takes_no_other_with_it() -> None:
    def fails() -> dict[Labels, float]:
        raise RuntimeError("no")

    kept = Kept()
    telemetry = Telemetry(Resource.get_empty(), [(kept, 3600.0)])
    telemetry.observe(metrics.KV_USAGE, fails)
    telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    telemetry.shutdown()
    assert set(kept.metrics) == {metrics.PROMPT_TOKENS.name}


def test_only_what_the_genai_conventions_name_carries_their_attributes() -> None:
    kept = Kept()
    telemetry_of_everything(kept).shutdown()
    for metric in metrics.ALL:
        (point,) = kept.metrics[metric.instrument_name].data.data_points
        named = metric.kind is Kind.HISTOGRAM and metric.otel_name is not None
        assert ("gen_ai.x" in (point.attributes or ())) == named


def test_a_collector_gets_counters_gauges_and_histograms_over_http(collector: OtlpCollector) -> None:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    telemetry_of_everything(OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics")).shutdown()
    (requests,) = collector.named(metrics.REQUESTS.name)
    assert [point.as_int for point in requests.sum.data_points] == [3]
    (usage,) = collector.named(metrics.KV_USAGE.name)
    assert [point.as_double for point in usage.gauge.data_points] == [0.25]
    (ttft,) = collector.named("gen_ai.server.time_to_first_token")
    (point,) = ttft.histogram.data_points
    assert (point.count, point.sum) == (3, pytest.approx(3.04))
    assert list(point.explicit_bounds) == list(metrics.TTFT.bounds)
    assert plain(point.attributes) == {"path": "some_path", "gen_ai.x": "y"}


def test_there_is_a_collector_only_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert otlp_endpoint(TelemetryConfig()) is None
    assert otlp_endpoint(TelemetryConfig(otlp_endpoint="http://c:1")) == "http://c:1"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:1")
    assert otlp_endpoint(TelemetryConfig()) == "http://env:1"
    assert otlp_endpoint(TelemetryConfig(otlp_endpoint="http://c:1")) == "http://c:1"
    assert otlp_endpoint(TelemetryConfig(enabled=False, otlp_endpoint="http://c:1")) is None


def test_the_environment_may_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica_resource("kvpulse-ingress", "r1").attributes["service.name"] == "kvpulse-ingress"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    attributes = replica_resource("kvpulse-ingress", "r1").attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("ours", "r1")
