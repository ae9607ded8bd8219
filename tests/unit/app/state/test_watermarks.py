"""Levels are entered at their marks and left below them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.admission import Marks
from app.state.watermarks import Level, Sustained, next_crowded, next_level

MARKS = Marks(alert=0.85, refuse_long=0.90, compress=0.95, leave_below=0.05)
NORMAL, ALERT, REFUSE_LONG, COMPRESS = Level.NORMAL, Level.ALERT, Level.REFUSE_LONG, Level.COMPRESS


@pytest.mark.parametrize(
    ("current", "value", "level"),
    [
        (NORMAL, 0.84, NORMAL),
        (NORMAL, 0.85, ALERT),
        (NORMAL, 0.90, REFUSE_LONG),
        (NORMAL, 0.95, COMPRESS),
        (NORMAL, 2.0, COMPRESS),
        (ALERT, 0.81, ALERT),
        (ALERT, 0.79, NORMAL),
        (REFUSE_LONG, 0.86, REFUSE_LONG),
        (REFUSE_LONG, 0.84, ALERT),
        (COMPRESS, 0.91, COMPRESS),
        (COMPRESS, 0.89, REFUSE_LONG),
        (COMPRESS, 0.10, NORMAL),
        (ALERT, 0.94, REFUSE_LONG),
    ],
)
def test_a_level_is_entered_at_its_mark_and_left_five_points_lower(current: Level, value: float, level: Level) -> None:
    assert next_level(current, value, MARKS) is level


@pytest.mark.parametrize("current", [NORMAL, ALERT, REFUSE_LONG, COMPRESS])
def test_an_unknown_value_changes_nothing(current: Level) -> None:
    assert next_level(current, None, MARKS) is current


@given(st.lists(st.floats(0.861, 0.939), min_size=2, max_size=50))
def test_swinging_around_a_mark_within_the_margin_changes_the_level_at_most_once(values: list[float]) -> None:
    level, levels = NORMAL, []
    for value in values:
        level = next_level(level, value, MARKS)
        levels.append(level)
    assert sum(before is not after for before, after in pairwise(levels)) <= 1


@given(st.sampled_from([NORMAL, ALERT, REFUSE_LONG, COMPRESS]), st.floats(0, 2), st.floats(0, 2))
def test_more_pressure_never_means_a_lower_level(current: Level, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    assert next_level(current, lower, MARKS) <= next_level(current, higher, MARKS)


@pytest.mark.parametrize(
    ("current", "waiting", "crowded"),
    [(False, 7, False), (False, 8, True), (True, 5, True), (True, 4, False), (True, None, True), (False, None, False)],
)
def test_a_queue_is_crowded_from_one_length_until_a_shorter_one(
    current: bool, waiting: float | None, crowded: bool
) -> None:
    assert next_crowded(current, waiting, enter=8, leave=4) is crowded


def test_a_condition_that_breaks_begins_anew() -> None:
    condition = Sustained()
    told = [condition.update(holds, now_s) for now_s, holds in enumerate([True, True, True, False, True, True])]
    assert told == [0, 1, 2, 0, 0, 1]
