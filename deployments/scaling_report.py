"""What became of scaling decisions, for those who watch: metrics, and the last decisions in Ray's internal store.

The store is written by a thread of its own: the Serve controller, in which decisions are made, must not wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from ray.util import metrics

from app import metrics as names
from app.decisions.scaling import ScalingDecision

logger = logging.getLogger("ray.serve")


class DecisionStore(Protocol):
    """Ray's internal one (`RayStore`)."""

    def replace(self, key: bytes, value: bytes) -> None: ...

    def get(self, key: bytes) -> bytes | None: ...


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last decision about one path's engines.

    Args:
        current_replicas: that run.
        target_replicas: that Serve had been asked for.
        changed_at_s: wall clock of the last decision that asked for another number; None since there was none.
        dry_run: nobody acted on it.
        inputs: the figures behind it.
    """

    desired_replicas: int
    current_replicas: int
    target_replicas: int
    reason: str
    decided_at_s: float
    changed_at_s: float | None
    dry_run: bool
    inputs: dict[str, float]


def last_decisions(app_name: str, store: DecisionStore) -> dict[str, DecisionRecord]:
    """By `hot` and `cold`, those whose replicas are a range; empty before the first decision."""
    value = store.get(_key(app_name))
    return {} if value is None else msgspec.json.decode(value, type=dict[str, DecisionRecord])


class DecisionPublisher:
    """Writes the newest records of one application. What is handed over while it writes replaces what waited."""

    def __init__(self, app_name: str, store: DecisionStore) -> None:
        self._key = _key(app_name)
        self._store = store
        self._newest: bytes | None = None
        self._news = threading.Event()
        threading.Thread(target=self._run, name="kvpulse-scaling-report", daemon=True).start()

    def publish(self, records: Mapping[str, DecisionRecord]) -> None:
        self._newest = msgspec.json.encode(records)
        self._news.set()

    def _run(self) -> None:
        failed = False
        while True:
            self._news.wait()
            self._news.clear()
            value = self._newest
            try:
                if value is not None:
                    self._store.replace(self._key, value)
                failed = False
            except Exception as error:  # the store comes back, or the cluster ends
                if not failed:
                    logger.warning("Scaling decisions cannot be published: %s", type(error).__name__)
                failed = True


class ScalingMetrics:
    """`app.metrics.SCALING_METRICS` on the metrics port of the controller's node."""

    def __init__(self) -> None:
        self._instruments: dict[str, Any] = {}
        for metric in names.SCALING_METRICS:
            kind = metrics.Counter if metric.kind is names.Kind.COUNTER else metrics.Gauge
            self._instruments[metric.name] = kind(metric.name, description=metric.help, tag_keys=metric.labels)

    def record(self, decision: ScalingDecision, changed: bool) -> None:
        tags = {"engines": str(decision.path)}
        self._instruments[names.DESIRED_REPLICAS.name].set(decision.desired_replicas, tags=tags)
        for metric, figure in (
            (names.DEMAND_TOKENS, decision.details.get("demand_tokens_per_s")),
            (names.FORECAST_TOKENS, decision.details.get("forecast_tokens_per_s")),
        ):
            if figure is not None:
                self._instruments[metric.name].set(figure, tags=tags)
        if changed:
            self._instruments[names.SCALING_DECISIONS.name].inc(tags={**tags, "reason": str(decision.reason)})


def _key(app_name: str) -> bytes:
    return f"{app_name}/scaling".encode()
