"""What an engine's prefix cache holds, as keyed chain hashes, from the events of vLLM's block pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from app.state.chain_hashes import NO_EXTRA, ChainHasher, text_extra
from app.state.pulse import CacheChange

BlockHash: TypeAlias = bytes | int
# Groups whose blocks serve every later token. Of a sliding window or a state space only the end counts, and which
# blocks of them are held says nothing about the prefix.
WHOLE_CONTEXT_KINDS = frozenset({"full_attention", "mla_attention"})
# Blocks in host memory or on disk cost a transfer: they are not what a router may count as cached.
CACHE_MEDIUM = "GPU"  # vLLM says so on CPUs too


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """vLLM 0.32's event of the same name, as far as it is read here; one physical block per hash."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    pass


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """The events of one engine step, in order. `ts`: seconds since the epoch, by the clock of the engine's node."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


@dataclass(slots=True)
class LedgerCounts:
    """Since the engine started, in blocks, but `churned`, `cleared` and `overflows` in times.

    Args:
        stored: physical blocks that entered the cache, copies included.
        removed: physical blocks that left it for others; evictions. Those of a cleared cache are not among them.
        churned: steps that evicted blocks and stored others.
        orphans: blocks not claimed because the block before them is unknown.
        unindexed: blocks not claimed for their kind: other group, medium or size.
        overflows: more blocks than the cache has, so events were lost or repeated: everything was forgotten.
    """

    stored: int = 0
    removed: int = 0
    churned: int = 0
    cleared: int = 0
    orphans: int = 0
    unindexed: int = 0
    overflows: int = 0


class BlockLedger:
    """The net content of one engine's cache, and what it is about to store for requests it has accepted.

    The latter is told at once: of many requests with a new prefix that reach several routers in the same moment, all
    but the first of each router then follow it.

    vLLM stores and removes physical blocks: two requests that compute the same prefix at once store it twice, and the
    prefix is gone when the last copy is. Of a hybrid model one group is indexed, the first whose blocks keep the whole
    context: its groups are filled together, and evicted from one pool.

    Args:
        hasher: its block size is that of the indexed group.
        capacity_blocks: blocks of the engine's cache; what bounds the memory of the ledger.
        caches_prefixes: False where the engine keeps no blocks for later requests: then nothing is expected either.
    """

    def __init__(self, hasher: ChainHasher, capacity_blocks: int, caches_prefixes: bool = True) -> None:
        self.counts = LedgerCounts()
        self.hasher = hasher
        self.caches_prefixes = caches_prefixes
        self._capacity_blocks = capacity_blocks
        self._group: int | None = None
        self._void_before_s = 0.0
        self._chains: dict[BlockHash, int] = {}
        self._more_copies: Counter[BlockHash] = Counter()  # beyond the first
        self._physical_blocks = 0
        # Distinct blocks of the engine per chain hash: nearly always one, but an adapter's path, for one, is not in the
        # events, so a reloaded adapter of the same name gives two.
        self._held: Counter[int] = Counter()
        self._expected: Counter[int] = Counter()
        self._pending: dict[int, bool] = {}
        self._pending_clear = False

    @property
    def cached_blocks(self) -> int:
        """Physical blocks that are held, copies included."""
        return self._physical_blocks

    @property
    def changed(self) -> bool:
        """Whether `take_change` has something to tell."""
        return self._pending_clear or bool(self._pending)

    def held(self) -> Iterable[int]:
        """The chain hash of every block that can be claimed, the pending change included."""
        return self._held.keys() | self._expected.keys()

    def holds(self, chain: int) -> bool:
        return chain in self._held

    def expect(self, chains: Iterable[int]) -> None:
        """A request has been accepted that will store these, or finds them."""
        for chain in chains if self.caches_prefixes else ():
            self._expected[chain] += 1
            if self._expected[chain] == 1 and chain not in self._held:
                self._note(chain, held=True)

    def expect_no_more(self, chains: Iterable[int]) -> None:
        """That request has stored them, or has ended without."""
        for chain in chains if self.caches_prefixes else ():
            self._expected[chain] -= 1
            if not self._expected[chain]:
                del self._expected[chain]
                if chain not in self._held:
                    self._note(chain, held=False)

    def take_change(self) -> CacheChange:
        """The net change since the last call."""
        change = CacheChange(
            cleared=self._pending_clear,
            removed=tuple(chain for chain, held in self._pending.items() if not held),
            stored=tuple(chain for chain, held in self._pending.items() if held),
        )
        self._pending, self._pending_clear = {}, False
        return change

    def forget_all(self, as_of_s: float | None = None) -> None:
        """Claim nothing any more.

        Args:
            as_of_s: when the engine was told to reset its cache, in seconds since the epoch. What it had done before
                may still be under way to here and will not be claimed; its own clear event may come much later.
        """
        if as_of_s is not None:
            self._void_before_s = as_of_s
        self._chains.clear()
        self._more_copies.clear()
        self._physical_blocks = 0
        self._held.clear()
        self._pending = dict.fromkeys(self._expected, True)
        self._pending_clear = True

    def apply(self, batch: EventBatch) -> None:
        """Follow one step of the engine."""
        void = batch.ts < self._void_before_s
        stored, removed = self.counts.stored, self.counts.removed
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                void = False
                self.counts.cleared += 1
                self.forget_all()
            elif void:
                continue
            elif isinstance(event, BlockStored):
                self._store_all(event)
            elif event.medium == CACHE_MEDIUM and event.group_idx == self._group:
                for block in event.block_hashes:
                    self._remove(block)
        self.counts.churned += self.counts.stored > stored and self.counts.removed > removed
        if self._physical_blocks > self._capacity_blocks:
            self.counts.overflows += 1
            self.forget_all()

    def _store_all(self, event: BlockStored) -> None:
        size, blocks = self.hasher.block_size, event.block_hashes
        if not self._indexes(event) or event.block_size != size or len(event.token_ids) != size * len(blocks):
            self.counts.unindexed += len(blocks)
            return
        parent = None
        if event.parent_block_hash is not None:
            parent = self._chains.get(event.parent_block_hash)
            if parent is None:
                self.counts.orphans += len(blocks)
                return
        extras = event.extra_keys or [None] * len(blocks)
        for position, (block, extra) in enumerate(zip(blocks, extras, strict=True)):
            chain = self._chains.get(block)
            if chain is None:
                tokens = event.token_ids[position * size : (position + 1) * size]
                chain = self.hasher.block(parent, tokens, unambiguous_extra(extra, event.lora_name, parent is None))
            self._store(block, chain)
            parent = chain

    def _indexes(self, event: BlockStored) -> bool:
        if event.medium != CACHE_MEDIUM or event.kv_cache_spec_kind not in WHOLE_CONTEXT_KINDS:
            return False
        if self._group is None:
            self._group = event.group_idx
        return event.group_idx == self._group

    def _store(self, block: BlockHash, chain: int) -> None:
        self.counts.stored += 1
        self._physical_blocks += 1
        if block in self._chains:
            self._more_copies[block] += 1
            return
        self._chains[block] = chain
        self._held[chain] += 1
        if self._held[chain] == 1 and chain not in self._expected:
            self._note(chain, held=True)

    def _remove(self, block: BlockHash) -> None:
        if block not in self._chains:
            return  # never claimed
        self.counts.removed += 1
        self._physical_blocks -= 1
        if self._more_copies[block]:
            self._more_copies[block] -= 1
            return
        del self._more_copies[block]
        chain = self._chains.pop(block)
        self._held[chain] -= 1
        if not self._held[chain]:
            del self._held[chain]
            if chain not in self._expected:
                self._note(chain, held=False)

    def _note(self, chain: int, held: bool) -> None:
        """A change and its reverse cancel out: `_pending` is relative to what was told last."""
        if chain in self._pending:
            del self._pending[chain]
        else:
            self._pending[chain] = held


def unambiguous_extra(keys: tuple[Any, ...] | None, adapter: str | None, first_block: bool) -> tuple[Any, ...]:
    """The extra of one block as `text_extra` has it, from vLLM's `extra_keys` of that block.

    vLLM publishes adapter names and cache salts as bare strings in one tuple, the adapter first and in every block.
    Images stay as they are, pairs of a hash and an offset; digests of embedded prompts are bytes.
    """
    if keys is None:
        return NO_EXTRA
    if adapter is None:
        return keys
    return (text_extra(adapter=adapter) if first_block else NO_EXTRA) + keys[1:]
