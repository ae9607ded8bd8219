"""What became of scaling decisions, for those who watch: metrics, and the last decisions in Ray's internal store.

The store is written by a thread of its own: the Serve controller, in which decisions are made, must not wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import msgspec
from ray.util import metrics as ray_metrics

from app import metrics
from app.decisions.scaling import ScalingDecision, ScalingReason
from app.requests import RequestPath

logger = logging.getLogger("ray.serve")


class DecisionStore(Protocol):
    """Ray's internal one (`RayStore`)."""

    def replace(self, key: bytes, value: bytes) -> None: ...

    def get(self, key: bytes) -> bytes | None: ...


class Turn(msgspec.Struct, frozen=True):
    """A decision that was news. `at_s` is wall clock."""

    at_s: float
    reason: str


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last decision about one path's engines.

    Args:
        current_replicas: that run.
        target_replicas: that Serve had been asked for.
        changed: the last decision that asked for another number; None since there was none.
        held: likewise, that began to hold the number.
        dry_run: nobody acted on it.
        inputs: the figures behind it.
    """

    desired_replicas: int
    current_replicas: int
    target_replicas: int
    reason: str
    decided_at_s: float
    changed: Turn | None = None
    held: Turn | None = None
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
    """`app.metrics.SCALING_METRICS` of one application on the metrics port of the controller's node.

    Args:
        ray: has Ray's `Counter` and `Gauge`.
    """

    def __init__(self, app_name: str, ray: ModuleType | Any = ray_metrics) -> None:
        self._application = {"application": app_name}
        self._counted_from_zero: set[RequestPath] = set()
        self._instruments: dict[str, Any] = {}
        for metric in metrics.SCALING_METRICS:
            kind = ray.Counter if metric.kind is metrics.Kind.COUNTER else ray.Gauge
            self._instruments[metric.name] = kind(metric.name, description=metric.help, tag_keys=metric.labels)

    def record(self, decision: ScalingDecision, counts: bool) -> None:
        """`counts`: it is one for `SCALING_DECISIONS`; those between only repeat it."""
        tags = {**self._application, "engines": str(decision.path)}
        self._instruments[metrics.DESIRED_REPLICAS.name].set(decision.desired_replicas, tags=tags)
        for metric, figure in (
            (metrics.DEMAND_TOKENS, decision.details.get("demand_tokens_per_s")),
            (metrics.FORECAST_TOKENS, decision.details.get("forecast_tokens_per_s")),
        ):
            if figure is not None:
                self._instruments[metric.name].set(figure, tags=tags)
        self._count(decision, tags, counts)

    def _count(self, decision: ScalingDecision, tags: dict[str, str], counts: bool) -> None:
        decisions = self._instruments[metrics.SCALING_DECISIONS.name]
        if decision.path not in self._counted_from_zero:
            self._counted_from_zero.add(decision.path)
            for reason in ScalingReason:  # changes are rare, and a rate misses the first of a series that was not there
                decisions._record(0, tags={**tags, "reason": str(reason)})  # `inc` refuses 0
        if counts:
            decisions.inc(tags={**tags, "reason": str(decision.reason)})


def _key(app_name: str) -> bytes:
    return f"{app_name}/scaling".encode()
