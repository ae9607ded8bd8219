"""How many replicas each path's engines have, and when that changes, as the Serve controller tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.requests import RequestPath
from app.state.board_reports import ScalingEvent

ReplicaCounts = Callable[[], Mapping[RequestPath, int]]


def counts_from_serve(application: str, deployments: Mapping[RequestPath, str]) -> ReplicaCounts:
    """Running replicas of those deployments. Blocks for one controller call."""

    def counts() -> Mapping[RequestPath, int]:
        from ray import serve
        from ray.serve.schema import ReplicaState  # type: ignore[attr-defined]  # it is there, and documented

        status = serve.status().applications.get(application)
        known = {} if status is None else status.deployments
        return {
            engines: known[name].replica_states.get(ReplicaState.RUNNING, 0)
            for engines, name in deployments.items()
            if name in known
        }

    return counts


class ReplicaChanges:
    """Replicas that started or stopped since it was last asked. The first answer is the number there is."""

    def __init__(self, counts: ReplicaCounts) -> None:
        self._counts = counts
        self._known: dict[RequestPath, int] = {}

    def __call__(self) -> Sequence[ScalingEvent]:
        events = []
        for engines, count in self._counts().items():
            before = self._known.get(engines)
            self._known[engines] = count
            if before is not None and before != count:
                events.append(ScalingEvent(engines, before, count, "started" if count > before else "stopped"))
        return events
