"""Sparsity, fragmentation and sharing of tables that can be counted by hand."""

from __future__ import annotations

import pytest

from app.state.block_tables import measure


def test_tables_of_nobody_have_no_ratios() -> None:
    tables = measure([], block_size=16, row_entries=8)
    assert (tables.sparsity_ratio, tables.fragmentation_ratio, tables.sharing_ratio) == (None, None, None)


def test_one_sequence_wastes_what_its_last_block_leaves_empty() -> None:
    tables = measure([([1, 2, 3], 33)], block_size=16, row_entries=8)
    assert tables.sparsity_ratio == 1 - 3 / 8
    assert tables.fragmentation_ratio == 15 / 48
    assert tables.sharing_ratio == 0


def test_a_shared_prefix_counts_once_as_blocks_and_twice_as_entries() -> None:
    tables = measure([([1, 2, 3], 48), ([1, 2, 4], 40)], block_size=16, row_entries=6)
    assert tables.sparsity_ratio == 0.5
    assert tables.sharing_ratio == pytest.approx(1 - 4 / 6)
    assert tables.fragmentation_ratio == 8 / 64


def test_blocks_that_have_left_the_window_are_no_entries_and_leave_nothing_empty() -> None:
    tables = measure([([0, 0, 5, 6], 60)], block_size=16, row_entries=8)
    assert (tables.entries, tables.blocks, tables.empty_slots) == (2, 2, 4)


def test_a_block_taken_ahead_is_empty() -> None:
    assert measure([([1, 2], 10)], block_size=16, row_entries=8).fragmentation_ratio == 22 / 32


def test_more_tokens_than_slots_leave_nothing_empty() -> None:
    """A step that is scheduled ahead counts its tokens before their blocks are all there."""
    assert measure([([1], 17)], block_size=16, row_entries=8).empty_slots == 0
