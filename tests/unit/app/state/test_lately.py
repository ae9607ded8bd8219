"""What happened lately, from counts that only rise."""

from __future__ import annotations

import pytest

from app.state.lately import BusyTime, Lately
from tests.fakes import FakeClock


def test_one_reading_tells_no_rate() -> None:
    lately = Lately(10, FakeClock(), 0)
    assert lately.change(5).per_s(0) == 0.0


def test_a_steady_rate_is_told_exactly_however_seldom_it_is_read() -> None:
    clock = FakeClock()
    lately = Lately(10, clock, 0)
    for seconds in (0.01, 1, 3, 2, 25, 7):
        clock.advance(seconds)
        assert lately.change(4 * (clock() - 1000)).per_s(0) == pytest.approx(4)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = FakeClock()
    lately = Lately(60, clock, 0)
    clock.advance(1)
    assert lately.change(100).amounts == (100,)
    for _ in range(60):
        clock.advance(1)
        change = lately.change(100)
    assert change.amounts == (0,)


def test_counts_change_together() -> None:
    clock = FakeClock()
    lately = Lately(60, clock, 10, 20)
    clock.advance(5)
    change = lately.change(13, 26)
    assert (change.amounts, change.elapsed_s) == ((3, 6), 5)


def test_a_thousand_readings_a_second_are_not_all_kept() -> None:
    clock = FakeClock()
    lately = Lately(60, clock, 0)
    for _ in range(100_000):
        clock.advance(0.001)
        lately.change(1)
    assert len(lately._readings) <= 62


def test_time_counts_as_what_was_found_at_its_end() -> None:
    clock = FakeClock()
    busy = BusyTime(clock)
    for seconds, found in ((1, True), (2, False), (3, True)):
        clock.advance(seconds)
        busy.look(found)
    assert busy.total_s == 4
