"""Rates forget, begin without a storm, and do not mistake a restart for events."""

from __future__ import annotations

import pytest

from app.state.rates import CounterRate, DecayingRate, PrefillSpeed


def test_a_steady_flow_is_measured_from_the_first_time_constant_on() -> None:
    rate = DecayingRate(10.0, now_s=0.0)
    for second in range(1, 101):
        rate.add(5.0, float(second))
        if second >= 10:
            assert rate.per_s(float(second)) == pytest.approx(5.0, rel=0.1)


def test_a_flow_that_stops_is_forgotten() -> None:
    rate = DecayingRate(10.0, now_s=0.0)
    rate.add(100.0, 50.0)
    assert rate.per_s(50.0) > 1
    assert rate.per_s(150.0) < 0.001


def test_one_event_at_the_beginning_is_no_storm() -> None:
    rate = CounterRate(10.0, first=0, now_s=0.0)
    assert rate.read(1, 0.1) < 0.5


def test_events_before_the_first_reading_are_not_counted() -> None:
    rate = CounterRate(10.0, first=1_000_000, now_s=0.0)
    assert rate.read(1_000_000, 1.0) == 0.0


def test_a_counter_that_fell_has_begun_anew() -> None:
    rate = CounterRate(10.0, first=500, now_s=0.0)
    assert rate.read(3, 1.0) == 0.0
    assert rate.read(4, 2.0) > 0.0


def test_the_prefill_speed_is_unknown_until_a_long_wait_taught_it() -> None:
    speed = PrefillSpeed(300.0, now_s=0.0)
    speed.add(10, 0.02, 1.0)  # fixed costs, not speed
    assert speed.tokens_per_s is None
    speed.add(6000, 10.0, 2.0)
    assert speed.tokens_per_s == pytest.approx(600)


def test_the_prefill_speed_follows_the_engines_and_survives_idleness() -> None:
    speed = PrefillSpeed(300.0, now_s=0.0)
    speed.add(6000, 10.0, 0.0)
    speed.add(6000, 5.0, 3000.0)
    assert speed.tokens_per_s == pytest.approx(1200, rel=0.01)


def test_a_hiccup_is_not_believed_for_long_where_all_prompts_are_short() -> None:
    speed = PrefillSpeed(60.0, now_s=0.0)
    speed.add(300, 20.0, 0.0)
    for second in range(120):
        speed.add(100, 0.2, float(second))
    assert speed.tokens_per_s is not None
    assert speed.tokens_per_s > 200


def test_short_prompts_do_not_make_engines_look_a_little_faster_than_they_are() -> None:
    speed = PrefillSpeed(60.0, now_s=0.0)
    speed.add(6000, 10.0, 0.0)
    for second in range(120):
        speed.add(100, 0.1, float(second))
    assert speed.tokens_per_s == pytest.approx(600)
