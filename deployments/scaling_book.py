"""What the policies of one application's deployments know together, in the Serve controller's process.

Serve asks each deployment's policy apart, ten times a second. They share this book, which decides for all of them once
a second. It is a module of its own because Serve pickles a policy's module by value: a book in there would be one per
policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from ray.serve.config import AutoscalingContext

from app.config.scaling import ScalingConfig
from app.decisions.scaling import FleetScaler, ScalingDecision, ScalingReason
from app.requests import RequestPath
from app.state.fleet import Fleet, PathFleet, Report, Stats
from app.state.scaling_inputs import EngineStats, IngressStats
from app.state.shared_budget import SharedBudget
from deployments.application_secret import RayStore
from deployments.scaling_report import DecisionPublisher, DecisionRecord, ScalingMetrics, Turn

logger = logging.getLogger("ray.serve")

INGRESS = "Ingress"
ENGINES = {"HotEngine": RequestPath.HOT, "ColdEngine": RequestPath.COLD}
_DECIDE_EVERY_S = 1.0
_PUBLISH_EVERY_S = 5.0
_FULL_AT = 16
_SAME_HOLD_S = 60.0  # one that comes and goes within this is told once
generations = count(1)  # of policies: the youngest knows the configuration that was deployed last


@dataclass(frozen=True)
class ScalingSettings:
    """What the application's configuration says to its policies.

    Args:
        full_at: sequences with which a replica of a path counts as full.
        replica_devices: what a replica holds.
        devices: what all may hold; None is no bound.
        fixed_replicas: of paths that do not scale.
    """

    rules: ScalingConfig = field(default_factory=ScalingConfig)
    full_at: Mapping[RequestPath, int] = field(default_factory=lambda: dict.fromkeys(ENGINES.values(), _FULL_AT))
    replica_devices: Mapping[RequestPath, float] = field(default_factory=lambda: dict.fromkeys(ENGINES.values(), 1.0))
    devices: float | None = None
    fixed_replicas: Mapping[RequestPath, int] = field(default_factory=dict)


class ScalingBook:
    """One application's. For one thread: Serve's control loop."""

    def __init__(self, metrics: ScalingMetrics, publisher: DecisionPublisher) -> None:
        self._metrics = metrics
        self._publisher = publisher
        self._generation = 0
        self._settings = ScalingSettings()
        self._scaler = _scaler(self._settings)
        self._contexts: dict[str, AutoscalingContext] = {}
        self._decisions: dict[RequestPath, ScalingDecision] = {}
        self._records: dict[str, DecisionRecord] = {}
        self._held_s: dict[tuple[RequestPath, ScalingReason], float] = {}
        self._decided_s: float | None = None
        self._published_s = float("-inf")

    def adopt(self, settings: ScalingSettings, generation: int) -> None:
        """Take over the settings of a policy if it is younger. What was learned under others is forgotten."""
        if generation > self._generation:
            self._generation = generation
            if settings != self._settings:
                self._settings, self._scaler = settings, _scaler(settings)
                self._contexts, self._decisions, self._records = {}, {}, {}
                self._decided_s = None

    def desired(self, context: AutoscalingContext) -> int:
        """Replicas for the deployment of `context`; its target where nothing else has been decided."""
        now_s = float(context.current_time or 0.0)  # Serve always tells it
        self._contexts[context.deployment_name] = context
        if self._decided_s is None:
            self._decided_s = now_s  # a second later every deployment has been asked, and all paths are known
        if not 0 <= now_s - self._decided_s < _DECIDE_EVERY_S:
            self._decided_s = now_s
            self._decide(now_s)
        path = ENGINES.get(context.deployment_name)
        decision = self._decisions.get(path) if path else None
        if decision is None or self._settings.rules.dry_run:
            return context.target_num_replicas
        return decision.desired_replicas

    def _decide(self, now_s: float) -> None:
        fleet = self._fleet(now_s)
        decided = self._scaler.decide(fleet, now_s)
        scaled = {path: decided[path] for name, path in ENGINES.items() if name in self._contexts}
        news = now_s - self._published_s >= _PUBLISH_EVERY_S
        for path, decision in scaled.items():
            changed = self._is_change(decision, fleet.paths[path])
            began_to_hold = self._begins_to_hold(decision, now_s) and not changed
            news |= changed or decision.reason != getattr(self._decisions.get(path), "reason", None)
            self._note(decision, fleet.paths[path], now_s, changed, began_to_hold)
        self._decisions = scaled
        if news and self._records:
            self._published_s = now_s
            self._publisher.publish(dict(self._records))

    def _is_change(self, decision: ScalingDecision, path: PathFleet) -> bool:
        """A decision that repeats the one before is none, whether or not it has been brought about."""
        before = self._decisions.get(decision.path)
        if decision.desired_replicas == (path.target if before is None else before.desired_replicas):
            return False
        return self._settings.rules.dry_run or decision.desired_replicas != path.target

    def _begins_to_hold(self, decision: ScalingDecision, now_s: float) -> bool:
        if not decision.reason.holds:
            return False
        held = decision.path, decision.reason
        last_s = self._held_s.get(held, float("-inf"))
        self._held_s[held] = now_s
        return now_s - last_s > _SAME_HOLD_S

    def _note(
        self, decision: ScalingDecision, path: PathFleet, now_s: float, changed: bool, began_to_hold: bool
    ) -> None:
        self._metrics.record(decision, counts=changed or began_to_hold)
        before = self._records.get(decision.path)
        turn = Turn(now_s, str(decision.reason))
        self._records[str(decision.path)] = DecisionRecord(
            desired_replicas=decision.desired_replicas,
            current_replicas=path.running,
            target_replicas=path.target,
            reason=str(decision.reason),
            decided_at_s=now_s,
            changed=turn if changed else before.changed if before else None,
            held=turn if began_to_hold else before.held if before else None,
            dry_run=self._settings.rules.dry_run,
            inputs=dict(decision.details),
        )
        if changed or began_to_hold:
            logger.info(
                "Scaling%s %s engines %s: %s %s",
                " (dry run)" if self._settings.rules.dry_run else "",
                decision.path,
                f"from {path.target} to {decision.desired_replicas}" if changed else f"held at {path.target}",
                decision.reason,
                {name: round(figure, 3) for name, figure in decision.details.items()},
            )

    def _fleet(self, now_s: float) -> Fleet:
        paths = {
            path: PathFleet(running=replicas, target=replicas, least=replicas, most=replicas)
            for path, replicas in self._settings.fixed_replicas.items()
        }
        for name, path in ENGINES.items():
            if context := self._contexts.get(name):
                paths[path] = PathFleet(
                    running=context.current_num_replicas,
                    target=context.target_num_replicas,
                    least=context.capacity_adjusted_min_replicas,
                    most=context.capacity_adjusted_max_replicas,
                    reports=list(reports(context, EngineStats, now_s)),
                )
        ingress = self._contexts.get(INGRESS)
        if ingress is None:
            return Fleet(paths, ingresses=1)
        return Fleet(paths, ingress.current_num_replicas, list(reports(ingress, IngressStats, now_s)))


def reports(context: AutoscalingContext, kind: type[Stats], now_s: float) -> Iterator[Report[Stats]]:
    """What the deployment's running replicas have said, averaged over Serve's look-back window.

    A replica that has said less than `kind` asks for has said nothing. What Serve has counted itself does not make the
    rest any younger.
    """
    told: dict[Any, dict[str, float]] = {}
    newest_s: dict[Any, float] = {}
    for name, by_replica in (context.raw_metrics or {}).items():
        for replica, series in by_replica.items():
            if series and name in kind.__struct_fields__:
                told.setdefault(replica, {})[name] = sum(point.value for point in series) / len(series)
                newest_s[replica] = max(newest_s.get(replica, 0.0), series[-1].timestamp)
    for replica, values in told.items():
        try:
            stats = msgspec.convert(values, kind)
        except msgspec.ValidationError:
            continue
        yield Report(stats, max(0.0, now_s - newest_s[replica]))


def _scaler(settings: ScalingSettings) -> FleetScaler:
    budget = SharedBudget(settings.devices, settings.replica_devices, settings.rules.lend_shares)
    return FleetScaler(settings.rules, settings.full_at, budget)


_books: dict[str, ScalingBook] = {}


def book_of(app_name: str) -> ScalingBook:
    """The one book of an application in this process."""
    if app_name not in _books:
        _books[app_name] = ScalingBook(ScalingMetrics(app_name), DecisionPublisher(app_name, RayStore()))
    return _books[app_name]
