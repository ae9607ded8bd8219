"""Replicas that come and go are events, and so is what the policy wants."""

from __future__ import annotations

from app.requests import RequestPath
from app.state.board_reports import ScalingEvent
from deployments.scaling_events import PolicyChanges, ReplicaChanges
from deployments.scaling_report import DecisionRecord, Turn

HOT, COLD = RequestPath.HOT, RequestPath.COLD


def test_a_change_is_told_once_and_the_first_look_is_no_change() -> None:
    changes = ReplicaChanges()
    running = [{HOT: 1, COLD: 1}, {HOT: 2, COLD: 1}, {HOT: 2, COLD: 1}, {HOT: 2, COLD: 0}]
    assert [list(changes(counts)) for counts in running] == [
        [],
        [ScalingEvent(HOT, 1, 2, "started")],
        [],
        [ScalingEvent(COLD, 1, 0, "stopped")],
    ]


def test_a_deployment_that_is_unknown_for_a_while_has_not_changed() -> None:
    changes = ReplicaChanges()
    assert [list(changes(counts)) for counts in ({HOT: 2}, {}, {HOT: 2})] == [[], [], []]


def decision(
    desired: int, changed: Turn | None, dry_run: bool = False, held: Turn | None = None, reason: str = "steady"
) -> DecisionRecord:
    return DecisionRecord(
        desired_replicas=desired,
        current_replicas=1,
        target_replicas=1,
        reason=reason,
        decided_at_s=100.0,
        changed=changed,
        held=held,
        dry_run=dry_run,
        inputs={},
    )


def demand(at_s: float) -> Turn:
    return Turn(at_s, "demand")


def test_a_decision_is_told_once_with_its_reason_and_those_before_the_first_look_are_not() -> None:
    told = iter(
        [{"hot": decision(2, demand(1.0))}, {"hot": decision(2, demand(1.0))}, {"hot": decision(3, demand(2.0))}, {}]
    )
    changes = PolicyChanges(lambda: next(told))
    assert [list(changes()) for _ in range(4)] == [[], [], [ScalingEvent(HOT, 2, 3, "wanted: demand")], []]


def test_the_first_decision_of_all_is_told_and_a_dry_run_says_so() -> None:
    told = iter([{}, {"cold": decision(1, None)}, {"cold": decision(2, demand(5.0), dry_run=True)}])
    changes = PolicyChanges(lambda: next(told))
    assert [list(changes()) for _ in range(3)] == [[], [], [ScalingEvent(COLD, 1, 2, "would_be_wanted: demand")]]


def test_what_is_wanted_is_told_against_what_was_wanted_not_against_what_runs_so_far() -> None:
    told = iter([{"hot": decision(3, demand(1.0))}, {"hot": decision(1, demand(2.0))}])
    changes = PolicyChanges(lambda: next(told))
    assert [list(changes()) for _ in range(2)] == [[], [ScalingEvent(HOT, 3, 1, "wanted: demand")]]


def test_a_wish_that_was_taken_back_between_two_looks_is_none() -> None:
    told = iter([{"hot": decision(3, demand(1.0))}, {"hot": decision(3, demand(5.0))}])
    changes = PolicyChanges(lambda: next(told))
    assert [list(changes()) for _ in range(2)] == [[], []]


def test_a_hold_is_told_with_what_holds() -> None:
    held = decision(1, demand(1.0), held=Turn(2.0, "budget"))
    told = iter([{"hot": decision(1, demand(1.0))}, {"hot": held}, {"hot": held}])
    changes = PolicyChanges(lambda: next(told))
    assert [list(changes()) for _ in range(3)] == [[], [ScalingEvent(HOT, 1, 1, "held: budget")], []]
