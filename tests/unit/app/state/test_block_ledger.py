"""The ledger claims what the engine's cache holds, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.state.block_ledger import AllBlocksCleared, BlockLedger, BlockRemoved, BlockStored, EventBatch
from app.state.chain_hashes import text_extra
from app.state.pulse import CacheChange
from tests.fake_engine_cache import HASHER, FakeEngineCache, cache_actions, perform

PROMPT = list(range(12))  # three blocks of four


def ledger(capacity_blocks: int = 1000) -> BlockLedger:
    return BlockLedger(HASHER, capacity_blocks)


def stored(**changes: Any) -> BlockStored:
    fields: dict[str, Any] = {
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": PROMPT[:8],
        "block_size": 4,
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return BlockStored(**(fields | changes))


def after(*events: Any, of: BlockLedger | None = None) -> set[int]:
    """What is claimed after these events."""
    of = of or ledger()
    of.apply(EventBatch(0.0, list(events)))
    return set(of.held())


def test_a_stored_prompt_has_the_hashes_that_the_ingress_computes() -> None:
    assert after(stored()) == set(HASHER.prompt(PROMPT[:8]))


def test_a_continued_prompt_joins_on_to_its_parent() -> None:
    more = stored(block_hashes=[3], parent_block_hash=2, token_ids=PROMPT[8:])
    assert after(stored(), more) == set(HASHER.prompt(PROMPT))


def test_a_salted_prompt_has_the_hashes_that_the_ingress_computes_with_the_salt() -> None:
    salted = after(stored(extra_keys=[("tenant",), None]))
    assert salted == set(HASHER.prompt(PROMPT[:8], text_extra("tenant")))
    assert not salted & after(stored())


def test_an_adapter_is_told_apart_from_the_base_model_and_from_a_salt_of_the_same_name() -> None:
    adapted = after(stored(extra_keys=[("sql",), ("sql",)], lora_name="sql"))
    assert adapted == set(HASHER.prompt(PROMPT[:8], text_extra(adapter="sql")))
    assert not adapted & after(stored())
    assert not adapted & after(stored(extra_keys=[("sql",), None]))


def test_an_adapter_under_a_salt_is_told_apart_from_either() -> None:
    both = after(stored(extra_keys=[("sql", "tenant"), ("sql",)], lora_name="sql"))
    assert both == set(HASHER.prompt(PROMPT[:8], text_extra("tenant", "sql")))
    assert not both & after(stored(extra_keys=[("sql",), ("sql",)], lora_name="sql"))


def test_images_under_the_same_placeholder_tokens_are_told_apart() -> None:
    one, other, moved = (
        after(stored(extra_keys=[None, keys])) for keys in ((("cat", 1),), (("dog", 1),), (("cat", 2),))
    )
    assert one & other & moved == after(stored()) & one  # the block before the image
    assert len(one | other | moved) == 4


def test_a_prefix_that_two_requests_stored_is_held_until_its_last_copy_goes() -> None:
    claimed = ledger()
    assert after(stored(), stored(), BlockRemoved([1, 2], "GPU", 0), of=claimed) == set(HASHER.prompt(PROMPT[:8]))
    assert after(BlockRemoved([2], "GPU", 0), of=claimed) == set(HASHER.prompt(PROMPT[:4]))
    assert (claimed.counts.stored, claimed.counts.removed) == (4, 3)


def test_a_reloaded_adapter_of_the_same_name_is_held_until_both_its_blocks_go() -> None:
    """Its path is in vLLM's hash but not in the event, so two of vLLM's hashes are one of ours."""
    claimed = ledger()
    both = [stored(block_hashes=hashes, extra_keys=[("sql",)] * 2, lora_name="sql") for hashes in ([1, 2], [3, 4])]
    held = after(*both, of=claimed)
    assert set(claimed.take_change().stored) == held
    assert after(BlockRemoved([1, 2], "GPU", 0), of=claimed) == held
    assert not claimed.changed
    assert after(BlockRemoved([3, 4], "GPU", 0), of=claimed) == set()


@pytest.mark.parametrize(
    "odd",
    [
        stored(kv_cache_spec_kind="sliding_window"),
        stored(kv_cache_spec_kind="mamba"),
        stored(kv_cache_spec_kind=None),
        stored(medium="CPU"),
        stored(medium="STORAGE"),
        stored(block_size=2, token_ids=PROMPT[:4]),
        stored(token_ids=PROMPT[:5]),
    ],
)
def test_what_serves_no_whole_prefix_on_the_device_is_not_claimed(odd: BlockStored) -> None:
    claimed = ledger()
    assert after(odd, of=claimed) == set()
    assert claimed.counts.unindexed == 2


def test_mla_blocks_are_claimed() -> None:
    assert len(after(stored(kv_cache_spec_kind="mla_attention"))) == 2


def test_of_a_hybrid_model_only_the_first_group_of_whole_context_counts() -> None:
    window = stored(kv_cache_spec_kind="sliding_window", group_idx=1)
    claimed = ledger()
    held = after(window, stored(group_idx=2), stored(group_idx=3), of=claimed)
    assert after(BlockRemoved([1, 2], "GPU", 1), BlockRemoved([1, 2], "GPU", 3), of=claimed) == held
    assert after(BlockRemoved([1, 2], "GPU", 2), of=claimed) == set()


def test_a_block_that_leaves_the_offload_tier_is_still_in_the_cache() -> None:
    assert len(after(stored(), BlockRemoved([1, 2], "CPU", 0))) == 2


def test_blocks_after_an_unknown_one_are_not_claimed_and_neither_are_those_after_them() -> None:
    claimed = ledger()
    late = [
        stored(block_hashes=[3], parent_block_hash=2, token_ids=PROMPT[:4]),
        stored(block_hashes=[4], parent_block_hash=3, token_ids=PROMPT[:4]),
    ]
    assert after(*late, of=claimed) == set()
    assert claimed.counts.orphans == 2


def test_the_change_is_net() -> None:
    claimed = ledger()
    after(stored(), BlockRemoved([2], "GPU", 0), of=claimed)
    first, second = HASHER.prompt(PROMPT[:8])
    assert claimed.take_change() == CacheChange(stored=(first,))
    after(BlockRemoved([1], "GPU", 0), stored(), of=claimed)
    assert claimed.take_change() == CacheChange(stored=(second,))
    assert not claimed.changed


def test_a_clear_cancels_what_came_before_it() -> None:
    claimed = ledger()
    after(stored(), of=claimed)
    claimed.take_change()
    after(BlockRemoved([2], "GPU", 0), AllBlocksCleared(), stored(block_hashes=[1], token_ids=PROMPT[:4]), of=claimed)
    assert claimed.take_change() == CacheChange(cleared=True, stored=tuple(HASHER.prompt(PROMPT[:4])))
    assert claimed.counts.cleared == 1


def test_steps_from_before_a_reset_are_not_claimed_when_they_come_after_it() -> None:
    claimed = ledger()
    claimed.forget_all(as_of_s=50.0)
    claimed.apply(EventBatch(49.9, [stored()]))
    assert not set(claimed.held())
    claimed.apply(EventBatch(50.1, [AllBlocksCleared(), stored()]))
    assert len(set(claimed.held())) == 2


def test_what_follows_the_clear_event_of_a_reset_is_claimed_even_in_a_step_from_before_it_was_told() -> None:
    claimed = ledger()
    claimed.forget_all(as_of_s=50.0)
    assert len(after(AllBlocksCleared(), stored(), of=claimed)) == 2


def test_more_blocks_than_the_cache_has_are_a_sign_of_lost_events() -> None:
    """Also what bounds the memory."""
    claimed = ledger(capacity_blocks=3)
    assert after(stored(), stored(), of=claimed) == set()
    assert claimed.counts.overflows == 1
    assert claimed.take_change().cleared


def test_hashes_may_be_bytes() -> None:
    wire = msgspec.msgpack.encode(EventBatch(0.0, [stored(block_hashes=[b"a" * 32, b"b" * 32])]))
    claimed = ledger()
    claimed.apply(msgspec.msgpack.decode(wire, type=EventBatch))
    assert set(claimed.held()) == set(HASHER.prompt(PROMPT[:8]))


@given(st.lists(cache_actions, max_size=60))
def test_the_changes_add_up_to_what_the_cache_holds(steps: list[tuple[Any, ...]]) -> None:
    cache, claimed, told = FakeEngineCache(), ledger(), set[int]()
    for action in [*steps, ("tell",)]:
        perform(cache, action)
        if action != ("tell",):
            continue
        claimed.apply(cache.take_batch())
        change = claimed.take_change()
        assert not set(change.removed) & set(change.stored)
        told = (set() if change.cleared else told) - set(change.removed) | set(change.stored)
        assert told == cache.held == set(claimed.held())


def test_a_block_that_is_expected_is_claimed_until_nobody_expects_it_and_the_cache_does_not_hold_it() -> None:
    of, (first, second) = ledger(), HASHER.prompt(PROMPT[:8])
    of.expect([first, second])
    of.expect([first])
    assert of.take_change() == CacheChange(stored=(first, second))
    after(stored(), of=of)
    of.expect_no_more([first, second])
    assert not of.changed
    after(BlockRemoved(block_hashes=[1, 2], medium="GPU", group_idx=0), of=of)
    assert of.take_change() == CacheChange(removed=(second,))
    of.expect_no_more([first])
    assert of.take_change() == CacheChange(removed=(first,))


def test_a_cache_that_is_forgotten_still_expects_what_its_requests_will_store() -> None:
    of = ledger()
    after(stored(), of=of)
    of.take_change()
    of.expect([7])
    of.forget_all()
    assert of.take_change() == CacheChange(cleared=True, stored=(7,))
    assert set(of.held()) == {7}


def test_a_step_that_evicts_to_store_is_churn_and_one_that_does_only_either_is_not() -> None:
    held = ledger()
    removed = BlockRemoved([2], medium="GPU", group_idx=0)
    more = stored(block_hashes=[5], token_ids=PROMPT[:4])
    after(stored(), of=held)
    assert held.counts.churned == 0
    after(removed, of=held)
    assert held.counts.churned == 0
    after(BlockRemoved([1], medium="GPU", group_idx=0), more, of=held)
    assert (held.counts.churned, held.counts.removed, held.cached_blocks) == (1, 2, 1)


def test_a_cleared_cache_has_evicted_nothing() -> None:
    held = ledger()
    after(stored(), AllBlocksCleared(), stored(), of=held)
    assert (held.counts.removed, held.counts.churned, held.cached_blocks) == (0, 0, 2)
