"""PromQL over our metrics as Ray's metrics ports show them, built from `Metric` objects, never from names.

Names there have the prefix `ray_`, counters keep their one `_total`, and Ray adds the labels `application`,
`deployment` and `replica`. Of histograms only the buckets are asked: Ray's own have sums that are made of them.

What would be meaningless is refused when it is written: a label that the metric does not have, the rate of a gauge, the
sum of ratios.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.metrics import Kind, Metric

RAY_LABELS = ("application", "deployment", "replica")


@dataclass(frozen=True, slots=True)
class PromQL:
    """Writes expressions over one choice of series.

    Args:
        window: of rates; a PromQL duration or a Grafana variable.
        selection: label and regular expression, used for the metrics that have the label.
    """

    window: str
    selection: tuple[tuple[str, str], ...] = ()

    def gauge(self, metric: Metric, **equal: str) -> str:
        """Each series by itself."""
        return self._series(metric, Kind.GAUGE, equal)

    def mean(self, metric: Metric, *by: str, **equal: str) -> str:
        return _grouped("avg", by, metric, self.gauge(metric, **equal))

    def highest(self, metric: Metric, *by: str, **equal: str) -> str:
        return _grouped("max", by, metric, self.gauge(metric, **equal))

    def lowest(self, metric: Metric, *by: str, **equal: str) -> str:
        return _grouped("min", by, metric, self.gauge(metric, **equal))

    def total(self, metric: Metric, *by: str, **equal: str) -> str:
        """Sum of a gauge that counts something."""
        if metric.unit == "1":
            raise ValueError(f"{metric.name}: ratios are averaged, never summed")
        return _grouped("sum", by, metric, self.gauge(metric, **equal))

    def reporting(self, metric: Metric, *by: str) -> str:
        """How many series of this gauge there are: with one per replica, the replicas that report."""
        return _grouped("count", by, metric, self.gauge(metric))

    def rate(self, metric: Metric, *by: str, **equal: str) -> str:
        """Per second."""
        return _grouped("sum", by, metric, f"rate({self._series(metric, Kind.COUNTER, equal)}[{self.window}])")

    def rate_except(self, metric: Metric, label: str, values: Iterable[str], *by: str, **equal: str) -> str:
        """Per second, of all but these values of a label."""
        unlike = f'{_known(metric, label)}!~"{"|".join(values)}"'
        series = self._series(metric, Kind.COUNTER, equal, unlike)
        return _grouped("sum", by, metric, f"rate({series}[{self.window}])")

    def quantile(self, q: float, metric: Metric, *by: str) -> str:
        """Within the bucket it is interpolated, so it is as exact as `metric.bounds` are fine."""
        buckets = f"rate({self._series(metric, Kind.HISTOGRAM, {}, suffix='_bucket')}[{self.window}])"
        return f"histogram_quantile({q:g}, {_grouped('sum', (*by, 'le'), metric, buckets)})"

    def ratio_of_rates(self, part: Metric, whole: Metric, *by: str, **equal: str) -> str:
        return ratio(self.rate(part, *by, **equal), self.rate(whole, *by, **equal))

    def _series(self, metric: Metric, kind: Kind, equal: dict[str, str], *further: str, suffix: str = "") -> str:
        if metric.kind is not kind:
            raise ValueError(f"{metric.name} is a {metric.kind}, not a {kind}")
        chosen = [f'{label}=~"{value}"' for label, value in self.selection if _has(metric, label)]
        chosen += [f'{_known(metric, label)}="{value}"' for label, value in equal.items()]
        inside = ",".join([*chosen, *further])
        return f"{metric.ray_name}{suffix}{{{inside}}}" if inside else f"{metric.ray_name}{suffix}"


def ratio(part: str, whole: str) -> str:
    """`part` over `whole`, both grouped alike. Without a whole, or where it is 0, there is no value."""
    return f"({zero_if_absent(part, whole)}) / ({whole})"


def zero_if_absent(part: str, whole: str) -> str:
    """What was never counted has no series. Where its `whole`, grouped alike, is there, that is 0 and not unknown."""
    return f"{part} or 0 * ({whole})"


def _grouped(how: str, by: tuple[str, ...], metric: Metric, inner: str) -> str:
    labels = ", ".join(_known(metric, label) for label in by)
    return f"{how} by ({labels}) ({inner})" if by else f"{how}({inner})"


def _has(metric: Metric, label: str) -> bool:
    return label in metric.labels or label in RAY_LABELS


def _known(metric: Metric, label: str) -> str:
    if not _has(metric, label) and label != "le":
        raise ValueError(f"{metric.name} has no label {label!r}; it has {', '.join((*metric.labels, *RAY_LABELS))}")
    return label
