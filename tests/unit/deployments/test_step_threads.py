from __future__ import annotations

import pytest

from deployments.engine_activity import Others
from deployments.step_threads import SMALL_STEP_TOKENS, StepThreads

FULL = 256
NOBODY, BUSY = Others(), Others(compute=True)


@pytest.fixture
def cold():
    return StepThreads(prompt=2, decode=1, alone=8, full_step_tokens=FULL)


@pytest.mark.parametrize("tokens", [1, SMALL_STEP_TOKENS, SMALL_STEP_TOKENS + 1, 100, FULL])
def test_an_engine_takes_every_core_while_no_other_computes(cold, tokens):
    assert [cold.of_step(tokens, NOBODY) for _ in range(3)] == [8, 8, 8]


def test_beside_others_it_keeps_to_its_share_and_takes_less_for_small_steps(cold):
    for tokens in (1, SMALL_STEP_TOKENS, FULL):
        cold.of_step(tokens, NOBODY)
    sizes = (1, SMALL_STEP_TOKENS, SMALL_STEP_TOKENS + 1, FULL)
    assert [cold.of_step(tokens, BUSY) for tokens in sizes] == [1, 1, 2, 2]


def test_while_another_has_its_turn_prompts_too_leave_it_its_share(cold):
    for tokens in (1, FULL):
        cold.of_step(tokens, NOBODY)
    turn = Others(compute=True, turn=True)
    assert [cold.of_step(tokens, turn) for tokens in (1, 100, FULL)] == [1, 1, 1]


@pytest.mark.parametrize(("tokens", "later"), [(1, 1), (SMALL_STEP_TOKENS, 1), (FULL, 2)])
def test_a_size_that_comes_often_is_first_computed_with_every_core_whoever_else_computes(cold, tokens, later):
    assert [cold.of_step(tokens, BUSY) for _ in range(3)] == [8, later, later]


def test_the_rest_of_a_prompt_waits_for_nobody_at_its_first_time_either(cold):
    assert cold.of_step(100, BUSY) == 2


def test_where_cores_are_not_lent_only_the_tokens_count():
    threads = StepThreads(prompt=2, decode=1, alone=None, full_step_tokens=FULL)
    assert [threads.of_step(tokens, NOBODY) for tokens in (1, 1, 100, FULL)] == [1, 1, 2, 2]
