"""What a hit ratio is called, against a limit and against what was usual."""

from __future__ import annotations

import pytest

from app.state.cache_condition import Health, condition_of


@pytest.mark.parametrize(
    ("now", "before", "health"),
    [
        (0.9, 0.9, Health.STEADY),
        (0.76, 0.99, Health.STEADY),
        (0.6, 0.64, Health.LOW),
        (0.7, 0.9, Health.LOW),
        (0.6, 0.9, Health.COLLAPSED),
        (0.0, 0.3, Health.COLLAPSED),
    ],
)
def test_a_collapse_is_a_deep_fall_to_a_low_ratio(now: float, before: float, health: Health) -> None:
    assert condition_of(now, [before] * 60, 0.75, reports=True).health is health


def test_a_start_with_an_empty_cache_is_low_and_no_collapse() -> None:
    found = condition_of(0.1, [0.9] * 10, 0.75, reports=True)
    assert (found.health, found.usual_hit_ratio) == (Health.LOW, None)


def test_the_usual_ratio_is_of_seconds_with_lookups() -> None:
    assert condition_of(0.9, [None, 0.8] * 40, 0.75, reports=True).usual_hit_ratio == 0.8


def test_no_lookups_and_no_reports_are_two_things() -> None:
    assert condition_of(None, [], 0.75, reports=True).health is Health.IDLE
    assert condition_of(None, [], 0.75, reports=False).health is Health.UNKNOWN
