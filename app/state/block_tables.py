"""How well the block tables of running sequences use their entries, and their blocks the slots in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class BlockTables(msgspec.Struct, frozen=True, array_like=True):
    """The tables of all running sequences together.

    Args:
        entries: that point to a block.
        room: entries that these tables have, for sequences of the longest context.
        blocks: distinct ones that they point to.
        block_size: slots of one block, in tokens.
        empty_slots: of those blocks.
    """

    entries: int
    room: int
    blocks: int
    block_size: int
    empty_slots: int

    @property
    def sparsity_ratio(self) -> float | None:
        """Unused share of the entries. None: nothing runs."""
        return 1 - self.entries / self.room if self.room else None

    @property
    def fragmentation_ratio(self) -> float | None:
        """Share of the slots that hold no token."""
        return self.empty_slots / (self.blocks * self.block_size) if self.blocks else None

    @property
    def sharing_ratio(self) -> float | None:
        """Share of the entries that need no block of their own."""
        return 1 - self.blocks / self.entries if self.entries else None


def measure(tables: Iterable[tuple[Sequence[int], int]], block_size: int, row_entries: int) -> BlockTables:
    """Of one group of layers.

    Args:
        tables: of each running sequence its block ids, 0 where a block has left the attention window, and how many
            tokens it has computed. Only full blocks are shared, so what a sequence leaves empty is its own.
        row_entries: entries of one table.
    """
    entries = rows = empty_slots = 0
    distinct: set[int] = set()
    for blocks, tokens in tables:
        held = [block for block in blocks if block]
        rows += 1
        entries += len(held)
        distinct.update(held)
        empty_slots += max(0, len(blocks) * block_size - tokens)
    return BlockTables(entries, rows * row_entries, len(distinct), block_size, empty_slots)
