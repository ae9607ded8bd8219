"""Replicas that come and go are events."""

from __future__ import annotations

from app.requests import RequestPath
from app.state.board_reports import ScalingEvent
from deployments.scaling_events import ReplicaChanges

HOT, COLD = RequestPath.HOT, RequestPath.COLD


def test_a_change_is_told_once_and_the_first_look_is_no_change() -> None:
    told = iter([{HOT: 1, COLD: 1}, {HOT: 2, COLD: 1}, {HOT: 2, COLD: 1}, {HOT: 2, COLD: 0}])
    changes = ReplicaChanges(lambda: next(told))
    assert [list(changes()) for _ in range(4)] == [
        [],
        [ScalingEvent(HOT, 1, 2, "started")],
        [],
        [ScalingEvent(COLD, 1, 0, "stopped")],
    ]


def test_a_deployment_that_is_unknown_for_a_while_has_not_changed() -> None:
    told = iter([{HOT: 2}, {}, {HOT: 2}])
    changes = ReplicaChanges(lambda: next(told))
    assert [list(changes()) for _ in range(3)] == [[], [], []]
