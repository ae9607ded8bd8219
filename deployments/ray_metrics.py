"""Ray's metrics port of the node as an OpenTelemetry exporter: what was collected becomes `ray.serve.metrics`.

Counters are passed on as increments. Histograms are passed on as what Prometheus makes of one, `_bucket`, `_sum` and
`_count`, cumulative, each a gauge: Ray's own histogram takes single values only, costs Ray's agent more for each than
the engine spends on measuring it, and rebuilds the sum from the middles of the buckets. To PromQL they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from types import ModuleType
from typing import Any

from opentelemetry.sdk.metrics import export as otel
from ray.serve import metrics as serve_metrics

from app.metrics import ALL, Metric


class RayExporter(otel.MetricExporter):
    """Serve adds `application`, `deployment` and `replica` to what a replica makes.

    Args:
        ray: has Ray's `Counter` and `Gauge`.
    """

    def __init__(self, ray: ModuleType | Any = serve_metrics) -> None:
        super().__init__()  # cumulative
        self._ray = ray
        self._metrics = {metric.instrument_name: metric for metric in ALL}
        self._made: dict[str, Any] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}

    def export(
        self, metrics_data: otel.MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> otel.MetricExportResult:
        for metric, data in self._collected(metrics_data):
            for point in data.data_points:
                labels = {name: str(point.attributes[name]) for name in metric.labels}
                if isinstance(data, otel.Histogram):
                    self._set_histogram(metric, labels, point)
                elif isinstance(data, otel.Sum):
                    self._count(metric, labels, point.value)
                else:
                    self._set(metric.name, metric.help, labels, point.value)
        return otel.MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None: ...

    def _collected(self, metrics_data: otel.MetricsData) -> Iterator[tuple[Metric, Any]]:
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                for collected in scope.metrics:
                    yield self._metrics[collected.name], collected.data

    def _count(self, metric: Metric, labels: dict[str, str], total: float) -> None:
        key = (metric.name, tuple(labels.values()))
        made = self._made.get(metric.name)
        if made is None:
            made = self._made[metric.name] = self._ray.Counter(metric.name, metric.help, metric.labels)
        told = self._told.get(key)
        if told is None or total > told:
            # `inc` refuses 0, by which a counter appears: the first increase of one that was not there is no increase.
            made._record(total - (told or 0), labels)
            self._told[key] = total

    def _set_histogram(self, metric: Metric, labels: dict[str, str], point: Any) -> None:
        bounds = [*map(str, map(float, point.explicit_bounds)), "+Inf"]
        for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
            self._set(f"{metric.name}_bucket", metric.help, {**labels, "le": bound}, count)
        self._set(f"{metric.name}_sum", metric.help, labels, point.sum)
        self._set(f"{metric.name}_count", metric.help, labels, point.count)

    def _set(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._ray.Gauge(name, text, tuple(labels))
        made.set(value, labels)
