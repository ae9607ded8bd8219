"""When the replicas of a path change, and what the autoscaling policy wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.requests import RequestPath
from app.state.board_reports import ScalingEvent
from deployments.scaling_report import DecisionRecord


class ReplicaChanges:
    """Replicas that started or stopped since the last look. The first one finds what there is."""

    def __init__(self) -> None:
        self._known: dict[RequestPath, int] = {}

    def __call__(self, running: Mapping[RequestPath, int]) -> Sequence[ScalingEvent]:
        """`running` replicas of each path's engines; one that is missing is not known now."""
        events = []
        for engines, count in running.items():
            before = self._known.get(engines)
            self._known[engines] = count
            if before is not None and before != count:
                events.append(ScalingEvent(engines, before, count, "started" if count > before else "stopped"))
        return events


class PolicyChanges:
    """Decisions for another number of replicas, or to hold it, since it was last asked. The first answer is what there
    was before.

    Args:
        decisions: the last one of each path.
    """

    def __init__(self, decisions: Callable[[], Mapping[str, DecisionRecord]]) -> None:
        self._decisions = decisions
        self._known: Mapping[str, DecisionRecord] | None = None

    def __call__(self) -> Sequence[ScalingEvent]:
        before, self._known = self._known, self._decisions()
        if before is None:
            return []
        events = (_event(path, decision, before.get(path)) for path, decision in self._known.items())
        return [event for event in events if event is not None]


def _event(path: str, decision: DecisionRecord, before: DecisionRecord | None) -> ScalingEvent | None:
    """What the policy wants against what it wanted: replicas that run may be neither yet."""
    desired = decision.desired_replicas
    if decision.changed not in (None, before and before.changed):
        wanted = decision.target_replicas if before is None else before.desired_replicas
        reason = f"{'would_be_wanted' if decision.dry_run else 'wanted'}: {decision.changed.reason}"
        return None if wanted == desired else ScalingEvent(RequestPath(path), wanted, desired, reason)
    if decision.held not in (None, before and before.held):
        return ScalingEvent(RequestPath(path), desired, desired, f"held: {decision.held.reason}")
    return None
