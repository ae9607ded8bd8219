from __future__ import annotations

import pytest

from deployments.engine_activity import Claim, Others
from deployments.step_turns import Turns

URGENT, OTHERWISE_BUSY, IDLE = Others(compute=True, urgent=True), Others(compute=True, turn=True), Others()


class Time:
    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time():
    return Time()


def waits_s(turns: Turns, time: Time) -> float:
    """Beside others that are urgent without a pause."""
    began_s = time.now_s
    assert turns.wait(lambda: URGENT) is Claim.TURN
    return time.now_s - began_s


@pytest.mark.parametrize("others", [IDLE, OTHERWISE_BUSY])
def test_where_nobody_is_urgent_nobody_waits_and_it_is_no_turn(time, others):
    turns = Turns(0.2, time, time.sleep)
    turns.took(time.now_s, 60.0)
    assert turns.wait(lambda: others) is Claim.NONE
    assert time.now_s == 100.0


def test_the_first_turn_comes_at_once(time):
    assert waits_s(Turns(0.2, time, time.sleep), time) == 0


@pytest.mark.parametrize(("ratio", "pause_s"), [(0.2, 4.0), (0.5, 1.0), (1.0, 0.0)])
def test_after_a_turn_comes_a_pause_that_keeps_turns_to_their_part_of_the_time(time, ratio, pause_s):
    turns = Turns(ratio, time, time.sleep)
    turns.took(began_s=time.now_s - 1, thread_s=1.0)
    assert waits_s(turns, time) == pytest.approx(pause_s, abs=0.01)


def test_a_turn_that_others_held_up_is_followed_by_the_next_one_the_sooner(time):
    turns = Turns(0.25, time, time.sleep)
    turns.took(began_s=time.now_s - 2, thread_s=0.5)
    assert waits_s(turns, time) == 0


def test_the_pause_ends_when_the_others_do(time):
    turns = Turns(0.1, time, time.sleep)
    turns.took(began_s=time.now_s - 10, thread_s=10.0)
    assert turns.wait(lambda: URGENT if time.now_s < 103 else IDLE) is Claim.NONE
    assert time.now_s == pytest.approx(103, abs=0.01)


def test_turns_of_any_lengths_have_their_part_of_the_time_together(time):
    turns, taken_s, began_s = Turns(0.25, time, time.sleep), 0.0, time.now_s
    for length_s in (0.2, 3.0, 0.001, 0.7):
        waits_s(turns, time)
        turns.took(time.now_s, length_s)
        time.now_s += length_s
        taken_s += length_s
    waits_s(turns, time)
    assert taken_s / (time.now_s - began_s) == pytest.approx(0.25, abs=0.002)
