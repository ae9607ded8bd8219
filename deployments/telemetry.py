"""OpenTelemetry in a replica: instruments made from `app.metrics`, read for OTLP and for Ray's metrics port.

What happens often is counted in plain Python (`app.state.tallies`), a fraction of a microsecond each; OpenTelemetry
asks for it when a reader collects. Its own synchronous instruments cost some five microseconds per value, which every
token would pay. It has no observable histogram, so distributions join the collected data on their way to an exporter.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from app.config.telemetry import TelemetryConfig
from app.metrics import Kind, Metric
from app.state.tallies import Distribution, Labels, Spread, Tally
from deployments.ray_metrics import RayExporter

SCOPE = "kvpulse"
GEN_AI_PREFIX = "gen_ai."
Reading: TypeAlias = Callable[[], Mapping[Labels, float]]


def otlp_endpoint(config: TelemetryConfig) -> str | None:
    """Base URL of the collector; None: there is none, and nothing is to be exported to one."""
    if not config.enabled:
        return None
    return config.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def signal_url(endpoint: str, signal: str) -> str:
    """Where a collector takes `metrics` or `traces`."""
    return f"{endpoint.rstrip('/')}/v1/{signal}"


def replica_resource(service: str, replica: str) -> Resource:
    """Who exports. What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes first."""
    own = Resource.create({"service.name": service, "service.instance.id": replica})
    return own.merge(OTELResourceDetector().detect())


class Telemetry:
    """The instruments of one replica.

    Args:
        resource: who exports.
        exporters: each with how often, in seconds, it gets everything. None of them: nothing is ever read.
        gen_ai: attributes of what the GenAI conventions name.
    """

    def __init__(
        self,
        resource: Resource,
        exporters: Iterable[tuple[otel.MetricExporter, float]] = (),
        gen_ai: Mapping[str, str] | None = None,
    ) -> None:
        self._gen_ai = dict(gen_ai or {})
        self._distributions: list[tuple[Metric, Distribution]] = []
        self._began_ns = time.time_ns()
        readers = [
            otel.PeriodicExportingMetricReader(_WithDistributions(exporter, self.complete), 1000 * period_s)
            for exporter, period_s in exporters
        ]
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter(SCOPE)

    @classmethod
    def of_replica(cls, config: TelemetryConfig, service: str, replica: str, model: str) -> Telemetry:
        """What the configuration asks for. For the constructor of a Serve replica, whose tags Ray's metrics take.

        Args:
            replica: its unique id.
            model: the name clients use.
        """
        exporters: list[tuple[otel.MetricExporter, float]] = []
        endpoint = otlp_endpoint(config)
        if config.enabled:
            exporters.append((RayExporter(), config.ray_period_s))
        if endpoint is not None:
            exporters.append((OTLPMetricExporter(endpoint=signal_url(endpoint, "metrics")), config.otlp_period_s))
        gen_ai = {"gen_ai.provider.name": SCOPE, "gen_ai.request.model": model}
        return cls(replica_resource(service, replica), exporters, gen_ai)

    def observe(self, metric: Metric, read: Reading) -> None:
        """A counter or gauge whose values are read when they are wanted, in the reader's thread.

        Args:
            read: values by the values of `metric.labels`. A gauge without a value is left out, not 0.
        """
        create = {
            Kind.COUNTER: self._meter.create_observable_counter,
            Kind.GAUGE: self._meter.create_observable_gauge,
        }[metric.kind]
        create(metric.instrument_name, [partial(_observations, metric, read)], metric.unit, metric.help)

    def tally(self, metric: Metric, *known: Labels) -> Tally:
        """A counter to add to."""
        counted = Tally(*known)
        self.observe(metric, counted.read)
        return counted

    def distribution(self, metric: Metric, *known: Labels) -> Distribution:
        """A histogram to observe values with."""
        made = Distribution(metric.bounds, *known)
        self._distributions.append((metric, made))
        return made

    def complete(self, collected: otel.MetricsData) -> otel.MetricsData:
        """With the distributions, as the SDK's own histograms would be there."""
        now_ns = time.time_ns()
        histograms = [self._histogram(metric, made.read(), now_ns) for metric, made in self._distributions]
        resources = []
        for resource in collected.resource_metrics:
            scopes = [replace(scope, metrics=[*scope.metrics, *histograms]) for scope in resource.scope_metrics]
            resources.append(replace(resource, scope_metrics=scopes))
        return otel.MetricsData(resources)

    def flush(self) -> None:
        """Every exporter gets everything now."""
        self._provider.force_flush()

    def shutdown(self) -> None:
        """Hand over what has been counted to the end."""
        self._provider.shutdown()

    def _histogram(self, metric: Metric, spreads: Mapping[Labels, Spread], now_ns: int) -> otel.Metric:
        gen_ai = self._gen_ai if metric.instrument_name.startswith(GEN_AI_PREFIX) else {}
        points = [
            otel.HistogramDataPoint(
                attributes={**gen_ai, **dict(zip(metric.labels, labels, strict=True))},
                start_time_unix_nano=self._began_ns,
                time_unix_nano=now_ns,
                count=spread.count,
                sum=spread.total,
                bucket_counts=spread.counts,
                explicit_bounds=metric.bounds,
                min=math.inf,  # as the SDK has it where extremes are not kept
                max=-math.inf,
            )
            for labels, spread in spreads.items()
        ]
        data = otel.Histogram(points, otel.AggregationTemporality.CUMULATIVE)
        return otel.Metric(metric.instrument_name, metric.help, metric.unit, data)


def _observations(metric: Metric, read: Reading, options: CallbackOptions) -> Sequence[Observation]:
    return [Observation(value, dict(zip(metric.labels, labels, strict=True))) for labels, value in read().items()]


class _WithDistributions(otel.MetricExporter):
    """Completes what was collected before an exporter gets it."""

    def __init__(self, exporter: otel.MetricExporter, complete: Callable[[otel.MetricsData], otel.MetricsData]) -> None:
        super().__init__()  # cumulative, which is what every exporter here wants
        self._exporter = exporter
        self._complete = complete

    def export(
        self, metrics_data: otel.MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> otel.MetricExportResult:
        return self._exporter.export(self._complete(metrics_data), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)
