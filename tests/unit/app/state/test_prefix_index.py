"""The index against a naive model, and what it promises about memory."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.state.prefix_index import PrefixIndex

REPLICAS = ("a", "b", "c", "d")
BLOCKS = range(24)
replicas = st.sampled_from(REPLICAS)
some_blocks = st.lists(st.sampled_from(BLOCKS), max_size=12)


def longest_prefix(held: set[int], hashes: list[int]) -> int:
    for depth, block in enumerate(hashes):
        if block not in held:
            return depth
    return len(hashes)


class Changes(RuleBasedStateMachine):
    """Any order of stores, removals and clears, repeated or for blocks never seen."""

    index: PrefixIndex
    held: dict[str, set[int]]

    @rule(replica=replicas, blocks=some_blocks)
    def add(self, replica: str, blocks: list[int]) -> None:
        self.index.add(replica, blocks)
        self.held[replica] |= set(blocks)

    @rule(replica=replicas, blocks=some_blocks)
    def remove(self, replica: str, blocks: list[int]) -> None:
        self.index.remove(replica, blocks)
        self.held[replica] -= set(blocks)

    @rule(replica=replicas)
    def clear(self, replica: str) -> None:
        self.index.clear(replica)
        self.held[replica] = set()


class UnboundedIndex(Changes):
    """Any order of stores, removals and clears, repeated or for blocks never seen, over one shard or many."""

    @initialize(shard_blocks=st.sampled_from([32, 4096]))
    def begin(self, shard_blocks: int) -> None:
        self.index = PrefixIndex(4096, shard_blocks)
        self.held = {replica: set() for replica in REPLICAS}

    @rule()
    def sweep(self) -> None:
        self.index.sweep()

    @rule(prompt=some_blocks)
    def matches_are_those_of_the_model(self, prompt: list[int]) -> None:
        expected = {replica: longest_prefix(held, prompt) for replica, held in self.held.items()}
        assert self.index.matched_blocks(prompt) == {replica: n for replica, n in expected.items() if n}
        match = self.index.match(prompt)
        assert {replica: match.blocks_of(replica) for replica in REPLICAS} == expected

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        assert {replica: self.index.blocks_of(replica) for replica in REPLICAS} == {
            replica: len(held) for replica, held in self.held.items()
        }

    @rule()
    def nothing_of_the_cleared_stays_after_a_sweep(self) -> None:
        while self.index.sweep():
            pass
        assert len(self.index) == len(set().union(*self.held.values()))


class BoundedIndex(Changes):
    """A full index holds a subset of the truth, within its bound."""

    @initialize(max_blocks=st.integers(1, 16), shard_blocks=st.sampled_from([2, 4096]))
    def begin(self, max_blocks: int, shard_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.index = PrefixIndex(max_blocks, shard_blocks)
        self.held = {replica: set() for replica in REPLICAS}

    @rule(prompt=some_blocks)
    def no_match_is_made_up(self, prompt: list[int]) -> None:
        for replica, blocks in self.index.matched_blocks(prompt).items():
            assert 1 <= blocks <= longest_prefix(self.held[replica], prompt)

    @invariant()
    def the_bound_holds_and_counts_are_of_what_is_there(self) -> None:
        assert len(self.index) <= self.max_blocks
        for replica in REPLICAS:
            known = sum(self.index.matched_blocks([block]).get(replica, 0) for block in BLOCKS)
            assert self.index.blocks_of(replica) == known


TestUnboundedIndex = UnboundedIndex.TestCase
TestUnboundedIndex.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestBoundedIndex = BoundedIndex.TestCase
TestBoundedIndex.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_a_match_is_a_prefix_not_a_count_of_common_blocks() -> None:
    index = PrefixIndex(100)
    index.add("a", [1, 2, 4])
    index.add("b", [2, 3])
    assert index.matched_blocks([1, 2, 3, 4]) == {"a": 2}


def test_what_was_stored_longest_ago_goes_first_and_is_counted() -> None:
    index = PrefixIndex(3)
    index.add("a", [1, 2, 3, 4, 5])
    assert index.evicted_blocks == 2
    assert [index.matched_blocks([block]) for block in (1, 2, 3, 4, 5)] == [{}, {}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert index.blocks_of("a") == 3


def test_a_cleared_replica_makes_room_before_a_live_one_loses_anything() -> None:
    """Two shards of three blocks; the sweep begins with the even one, the room is needed in the odd one."""
    index = PrefixIndex(6, shard_blocks=3)
    index.add("alive", [1])
    index.add("cleared", [3, 5, 2])
    index.clear("cleared")
    index.add("alive", [7, 9])
    assert index.evicted_blocks == 0
    assert index.blocks_of("alive") == 3


def test_a_replica_that_comes_back_holds_only_what_it_stored_since() -> None:
    index = PrefixIndex(4096, 32)
    index.add("a", range(100))
    index.clear("a")
    index.add("a", [7])
    assert [index.matched_blocks([block]) for block in (6, 7, 8)] == [{}, {"a": 1}, {}]
    assert index.blocks_of("a") == 1


def test_replicas_that_come_and_go_for_ever_leave_no_trace() -> None:
    index = PrefixIndex(1024, 64)
    for generation in range(2000):
        index.add(f"replica-{generation}", range(generation, generation + 50))
        index.clear(f"replica-{generation}")
    while index.sweep():
        pass
    assert len(index) == 0
    index.add("next", [1])
    # A mask as wide as all who ever lived would take 2,000 bits.
    assert max(mask.bit_length() for shard in index._shards for mask in shard.values()) < 64


def test_a_limited_match_keeps_the_longest_and_draws_fairly_among_equals() -> None:
    index = PrefixIndex(10_000)
    index.add("best", [1, 2, 3])
    for number in range(100):
        index.add(f"equal-{number}", [1, 2])
    for number in range(900):
        index.add(f"without-{number}", [9])
    rng = random.Random(5)
    drawn = [index.match([1, 2, 3]).longest(5, rng) for _ in range(1000)]
    assert all(len(found) == 5 and found["best"] == 3 for found in drawn)
    times = [sum(f"equal-{number}" in found for found in drawn) for number in range(100)]
    assert min(times) > 15 and max(times) < 80  # 40 expected, 6 the standard deviation


def test_an_entry_costs_no_more_for_being_held_by_many() -> None:
    index = PrefixIndex(100_000)
    for number in range(200):
        index.add(f"replica-{number}", range(2_000))
    masks = {id(mask) for shard in index._shards for mask in shard.values()}
    assert len(masks) == 1
    assert sum(map(sys.getsizeof, index._shards)) / len(index) < 60


@pytest.mark.parametrize("max_blocks", [0, -1])
def test_a_bound_below_one_is_refused(max_blocks: int) -> None:
    with pytest.raises(ValueError, match="max_blocks must be at least 1"):
        PrefixIndex(max_blocks)
