"""Frequent prefixes are found, rare ones are not, old ones fade, and memory is bounded."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.admission import HeavyHittersConfig
from app.state.heavy_hitters import HeavyHitters
from tests.fakes import FakeClock

RULES = HeavyHittersConfig(capacity=256, half_life_s=300, min_requests=20, min_share=0.01)


def prompts(shared: int, length: int):
    """Prompts of `length` blocks whose first `shared` are the same."""
    fresh = count(10_000)
    while True:
        yield [*range(shared), *(next(fresh) for _ in range(length - shared))]


def test_a_prefix_becomes_frequent_with_enough_requests() -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    stream = prompts(shared=64, length=100)
    found = [hitters.see(next(stream)) for _ in range(20)]
    assert found == [0] * 19 + [64]


@pytest.mark.parametrize("shared", [1, 2, 3, 5, 7, 11, 23, 50, 100, 1000])
def test_it_is_found_at_most_a_third_shorter_than_it_is(shared: int) -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    stream = prompts(shared, length=shared + 20)
    for _ in range(30):
        found = hitters.see(next(stream))
    assert shared * 2 / 3 <= found <= shared


def test_prompts_that_share_nothing_make_nothing_frequent() -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    stream = prompts(shared=0, length=16)
    assert not any(hitters.see(next(stream)) for _ in range(5000))


def test_a_prompt_shorter_than_a_block_has_no_prefix() -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    assert not any(hitters.see([]) for _ in range(100))


def test_a_frequent_prefix_is_kept_in_a_flood_of_prompts_that_come_once() -> None:
    hitters, rng = HeavyHitters(RULES, FakeClock()), Random(7)
    common, unique = prompts(shared=8, length=12), prompts(shared=0, length=12)
    for _ in range(20_000):
        hitters.see(next(common) if rng.random() < 0.2 else next(unique))
    assert hitters.see(next(common)) == 8


def test_a_prefix_below_its_share_is_not_frequent_however_often_it_came() -> None:
    hitters = HeavyHitters(RULES.model_copy(update={"capacity": 100_000}), FakeClock())
    rare, unique = prompts(shared=8, length=9), prompts(shared=0, length=2)
    for number in range(10_000):
        hitters.see(next(rare) if number % 200 == 0 else next(unique))
    assert hitters.see(next(rare)) == 0


def test_what_nobody_asks_for_any_more_fades() -> None:
    clock = FakeClock()
    hitters = HeavyHitters(RULES, clock)
    stream = prompts(shared=8, length=9)
    for _ in range(30):
        hitters.see(next(stream))
    clock.advance(300)
    assert hitters.see(next(stream)) == 0  # 30 / 2 + 1
    clock.advance(3)
    for _ in range(4):
        hitters.see(next(stream))
    assert hitters.see(next(stream)) == 8


@pytest.mark.parametrize("days", [1, 30, 36_500])
def test_counts_stay_finite_and_right_after_days(days: int) -> None:
    clock = FakeClock()
    hitters = HeavyHitters(RULES, clock)
    stream = prompts(shared=8, length=9)
    for _ in range(30):
        hitters.see(next(stream))
    clock.advance(days * 86_400)
    assert [hitters.see(next(stream)) for _ in range(20)][-2:] == [0, 8]


def test_memory_is_flat_however_many_prefixes_come() -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    stream = prompts(shared=0, length=32)
    tracemalloc.start()
    for _ in range(500):
        hitters.see(next(stream))
    settled, _ = tracemalloc.get_traced_memory()
    for _ in range(10_000):
        hitters.see(next(stream))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(hitters) == RULES.capacity
    assert after < settled * 1.1


@given(st.lists(st.integers(0, 30), max_size=400), st.integers(1, 40))
def test_nothing_is_called_frequent_that_came_too_rarely(keys: list[int], capacity: int) -> None:
    """The sketch against exact counts: its guaranteed counts are never too high."""
    rules = HeavyHittersConfig(capacity=capacity, min_requests=5, min_share=0.0)
    hitters, exact = HeavyHitters(rules, FakeClock()), Counter[int]()
    for key in keys:
        exact[key] += 1
        frequent = hitters.see([key])
        if frequent:
            assert exact[key] >= 5
        if capacity > 30:
            assert bool(frequent) == (exact[key] >= 5)
    assert len(hitters) <= capacity


def test_asking_what_is_frequent_counts_nothing() -> None:
    hitters = HeavyHitters(RULES, FakeClock())
    stream = prompts(shared=64, length=100)
    for _ in range(19):
        hitters.see(next(stream))
    for _ in range(50):
        assert hitters.frequent_blocks(next(stream)) == 0
    assert hitters.see(next(stream)) == hitters.frequent_blocks(next(stream)) == 64
