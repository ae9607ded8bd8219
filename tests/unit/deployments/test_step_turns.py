from __future__ import annotations

import pytest

from deployments.engine_activity import Claim, Others
from deployments.step_turns import Turns
from tests.fakes import FakeClock

URGENT, OTHERWISE_BUSY, IDLE = Others(compute=True, urgent=True), Others(compute=True, turn=True), Others()


@pytest.fixture
def clock():
    return FakeClock()


def waits_s(turns: Turns, clock: FakeClock) -> float:
    """Beside others that are urgent without a pause."""
    began_s = clock.now_s
    assert turns.wait(lambda: URGENT) is Claim.TURN
    return clock.now_s - began_s


@pytest.mark.parametrize("others", [IDLE, OTHERWISE_BUSY])
def test_where_nobody_is_urgent_nobody_waits_and_it_is_no_turn(clock, others):
    turns = Turns(0.2, clock, clock.advance)
    began_s = clock.now_s
    turns.took(began_s, 60.0)
    assert turns.wait(lambda: others) is Claim.NONE
    assert clock.now_s == began_s


def test_the_first_turn_comes_at_once(clock):
    assert waits_s(Turns(0.2, clock, clock.advance), clock) == 0


@pytest.mark.parametrize(("ratio", "pause_s"), [(0.2, 4.0), (0.5, 1.0), (1.0, 0.0)])
def test_after_a_turn_comes_a_pause_that_keeps_turns_to_their_part_of_the_time(clock, ratio, pause_s):
    turns = Turns(ratio, clock, clock.advance)
    turns.took(began_s=clock.now_s - 1, thread_s=1.0)
    assert waits_s(turns, clock) == pytest.approx(pause_s, abs=0.01)


def test_a_turn_that_others_held_up_is_followed_by_the_next_one_the_sooner(clock):
    turns = Turns(0.25, clock, clock.advance)
    turns.took(began_s=clock.now_s - 2, thread_s=0.5)
    assert waits_s(turns, clock) == 0


def test_the_pause_ends_when_the_others_do(clock):
    turns = Turns(0.1, clock, clock.advance)
    turns.took(began_s=clock.now_s - 10, thread_s=10.0)
    idle_s = clock.now_s + 3
    assert turns.wait(lambda: URGENT if clock.now_s < idle_s else IDLE) is Claim.NONE
    assert clock.now_s == pytest.approx(idle_s, abs=0.01)


def test_turns_of_any_lengths_have_their_part_of_the_time_together(clock):
    turns, taken_s, began_s = Turns(0.25, clock, clock.advance), 0.0, clock.now_s
    for length_s in (0.2, 3.0, 0.001, 0.7):
        waits_s(turns, clock)
        turns.took(clock.now_s, length_s)
        clock.now_s += length_s
        taken_s += length_s
    waits_s(turns, clock)
    assert taken_s / (clock.now_s - began_s) == pytest.approx(0.25, abs=0.002)
