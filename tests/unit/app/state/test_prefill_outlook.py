"""How long a prompt waits for those before it, where steps are shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.requests import RequestPath
from app.state.prefill_outlook import PrefillOutlook

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD


def outlook(queued: float, *ours: tuple[RequestPath, int], replicas: int = 1) -> PrefillOutlook:
    return PrefillOutlook(queued, ours, replicas, chunk_tokens=128, tokens_per_s=500.0)


def test_idle_engines_make_nobody_wait() -> None:
    assert outlook(0).ahead_tokens(HOT, 2000) == 0


def test_a_short_prompt_waits_for_the_step_under_way_and_for_one_chunk_of_a_long_one() -> None:
    assert outlook(2000, (HOT, 2000)).ahead_tokens(HOT, 40) == 128 + 128


def test_a_long_prompt_waits_for_as_much_of_another_as_it_computes_itself() -> None:
    found = outlook(2600, (HOT, 2000), (HOT, 600))
    assert found.ahead_tokens(HOT, 900) == 128 + 900 + 600


def test_no_more_is_waited_for_than_is_left() -> None:
    assert outlook(30, (HOT, 2000)).ahead_tokens(HOT, 900) == 30


def test_less_urgent_prompts_yield_and_more_urgent_ones_do_not() -> None:
    found = outlook(3000, (WARM, 2000), (HOT, 1000))
    assert found.ahead_tokens(HOT, 5000) == 128 + 1000
    assert found.ahead_tokens(WARM, 5000) == 3000


def test_what_other_ingress_replicas_sent_is_waited_for_in_full() -> None:
    assert outlook(3000, (HOT, 1000)).ahead_tokens(HOT, 40) == 128 + 2000 + 128


def test_ours_are_spread_over_the_replicas() -> None:
    assert outlook(1000, *[(HOT, 1000)] * 4, replicas=4).ahead_tokens(HOT, 500) == 128 + 500


def test_without_a_known_speed_nothing_is_predicted() -> None:
    assert PrefillOutlook(5000.0).seconds(5000.0) == 0
    assert outlook(0).seconds(250) == pytest.approx(0.5)


prompts = st.lists(st.tuples(st.sampled_from([HOT, WARM]), st.integers(1, 9000)), max_size=20)


@given(st.floats(0, 1e6), prompts, st.integers(1, 9), st.integers(0, 9000), st.integers(0, 9000))
def test_a_longer_prompt_never_waits_less_and_none_for_more_than_there_is(
    queued: float, ours: list[tuple[RequestPath, int]], replicas: int, one: int, other: int
) -> None:
    found = outlook(queued, *ours, replicas=replicas)
    less, more = sorted((one, other))
    assert 0 <= found.ahead_tokens(HOT, less) <= found.ahead_tokens(HOT, more) <= queued
