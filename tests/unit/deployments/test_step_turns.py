from __future__ import annotations

import pytest

from deployments.step_turns import Turns


def test_the_first_turn_is_due_at_once():
    assert Turns(0.2).due(0.0)


@pytest.mark.parametrize(("ratio", "next_s"), [(0.2, 15.0), (0.5, 12.0), (1.0, 11.0)])
def test_after_a_turn_comes_a_pause_that_keeps_turns_to_their_part_of_the_time(ratio, next_s):
    turns = Turns(ratio)
    turns.took(began_s=10.0, thread_s=1.0)
    assert not turns.due(next_s - 0.001)
    assert turns.due(next_s)


def test_a_turn_that_others_held_up_is_followed_by_the_next_one_the_sooner():
    turns = Turns(0.25)
    turns.took(began_s=10.0, thread_s=0.5)  # it ended at 12
    assert turns.due(12.0)


def test_turns_of_any_lengths_have_their_part_of_the_time_together():
    turns, now_s, taken_s = Turns(0.25), 0.0, 0.0
    for length_s in (0.2, 3.0, 0.001, 0.7):
        while not turns.due(now_s):
            now_s += 0.001
        turns.took(now_s, length_s)
        now_s, taken_s = now_s + length_s, taken_s + length_s
    while not turns.due(now_s):
        now_s += 0.001
    assert taken_s / now_s == pytest.approx(0.25, abs=0.001)
