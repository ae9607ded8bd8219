"""Ray's metrics, on the side that its agent sees: what each one was told. Checks tags as Ray does."""

from __future__ import annotations

from ray.util import metrics as ray_metrics


class FakeRay:
    """Stands for `ray.util.metrics`. `told`: by name and label values, in the order of the values."""

    def __init__(self) -> None:
        told = self.told = {}  # type: dict[tuple[str, tuple[str, ...]], list[float]]

        class Counter(ray_metrics.Counter):
            def _record(self, value: float, tags: dict[str, str] | None = None) -> None:
                super()._record(value, tags)
                told.setdefault((self._name, tuple((tags or {}).values())), []).append(value)

        class Gauge(ray_metrics.Gauge):
            def _record(self, value: float, tags: dict[str, str] | None = None) -> None:
                super()._record(value, tags)
                told.setdefault((self._name, tuple((tags or {}).values())), []).append(value)

        self.Counter, self.Gauge = Counter, Gauge
