"""An exporter that keeps what it is given."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import export as otel


class Kept(otel.MetricExporter):
    """`metrics`: of the last collection, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, otel.Metric] = {}

    def export(self, metrics_data: otel.MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> Any:
        (resource,) = metrics_data.resource_metrics
        (scope,) = resource.scope_metrics
        self.metrics = {metric.name: metric for metric in scope.metrics}
        return otel.MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None: ...
