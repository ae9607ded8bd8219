"""Which replicas hold which prompt blocks: one table for all replicas, from chain hash to a bit mask of holders."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

# A dict that grows or is compacted stops its process: 78 ms at 1.4 million entries, so the table is many small ones.
# Under constant change a dict is rebuilt for thrice what it holds, rounded up to a power of two: 3 * 2730 fits 8192.
_SHARD_BLOCKS = 2730
_MAX_INTERNED_MASKS = 65_536


class PrefixIndex:
    """Chain hash -> replicas that hold the block. Not thread-safe.

    A replica is a bit of the mask, so an entry costs its key and its place in a dict however many replicas hold it:
    equal masks are one object. `clear` retires the bit: lookups ignore it at once, later calls sweep it out of one
    shard each, and it is given to another replica only when no entry carries it any more.

    Args:
        max_blocks: bound on entries. Room for another block is made by forgetting those stored longest ago, counted in
            `evicted_blocks`; engines tell what they evict, so a bound that is reached is set too low.
        shard_blocks: entries per dict.
    """

    def __init__(self, max_blocks: int, shard_blocks: int = _SHARD_BLOCKS) -> None:
        if max_blocks < 1:
            raise ValueError(f"max_blocks must be at least 1, got {max_blocks}")
        shards = -(-max_blocks // shard_blocks)
        self._shards: list[dict[int, int]] = [{} for _ in range(shards)]  # a block is in shard `hash % shards`
        self._shard_limit = max_blocks // shards
        self._interned: dict[int, int] = {}
        self._slots: dict[str, int] = {}  # of replicas that hold something
        self._names: list[str] = []  # by slot
        self._counts: list[int] = []  # by slot: entries that carry its bit
        self._live = 0  # slots in use, as a mask; likewise the next two
        self._retired = 0  # cleared, but still carried by entries
        self._free = 0
        self._next_sweep = 0
        self.evicted_blocks = 0

    def __len__(self) -> int:
        """Entries in memory. Those only a cleared replica held count until they are swept."""
        return sum(map(len, self._shards))

    def blocks_of(self, replica: str) -> int:
        """How many blocks the replica holds."""
        slot = self._slots.get(replica)
        return 0 if slot is None else self._counts[slot]

    def add(self, replica: str, hashes: Iterable[int]) -> None:
        """The replica holds these blocks."""
        self.sweep()
        slot = self._slot_of(replica)
        bit = 1 << slot
        alone = self._intern(bit)
        shards, count, limit = self._shards, len(self._shards), self._shard_limit
        for block in hashes:
            shard = shards[block % count]
            mask = shard.get(block)
            if mask is None:
                if len(shard) >= limit:
                    self._make_room(shard)
                shard[block] = alone
            elif mask & bit:
                continue
            else:
                shard[block] = self._intern(mask | bit)
            self._counts[slot] += 1

    def remove(self, replica: str, hashes: Iterable[int]) -> None:
        """The replica no longer holds these blocks; it need not have held them."""
        self.sweep()
        slot = self._slots.get(replica)
        if slot is None:
            return
        bit = 1 << slot
        for block in hashes:
            shard = self._shards[block % len(self._shards)]
            mask = shard.get(block, 0)
            if mask & bit:
                self._counts[slot] -= 1
                self._store(shard, block, mask ^ bit)

    def clear(self, replica: str) -> None:
        """Forget all that the replica holds, and with it the replica, in constant time. It may come back."""
        slot = self._slots.pop(replica, None)
        if slot is None:
            return
        self._live ^= 1 << slot
        if self._counts[slot]:
            self._retired |= 1 << slot
        else:
            self._free |= 1 << slot

    def sweep(self) -> bool:
        """Take the bits of cleared replicas out of one shard. Whether there is more to sweep."""
        if self._retired:
            self._sweep(self._shards[self._next_sweep])
            self._next_sweep = (self._next_sweep + 1) % len(self._shards)
        return self._retired != 0

    def match(self, hashes: Sequence[int]) -> PrefixMatch:
        """How long a prefix of these blocks each replica holds. Replicas that hold nothing of it are never visited."""
        shards, count = self._shards, len(self._shards)
        levels: list[tuple[int, int]] = []
        holders, previous = self._live, -1
        depth = 0
        for depth, block in enumerate(hashes):
            mask = shards[block % count].get(block, 0)
            if mask is previous:  # neighbours mostly share their holders, and equal masks are one object
                continue
            previous = mask
            remaining = holders & mask
            if remaining != holders:
                if depth:
                    levels.append((depth, holders ^ remaining))
                holders = remaining
                if not holders:
                    break
        else:
            if holders and hashes:
                levels.append((depth + 1, holders))
        levels.reverse()
        return PrefixMatch(levels, self._names, self._slots)

    def matched_blocks(self, hashes: Sequence[int]) -> dict[str, int]:
        """Replica -> blocks of the longest prefix that it holds, for all that hold at least one."""
        return self.match(hashes).longest()

    def _slot_of(self, replica: str) -> int:
        slot = self._slots.get(replica)
        if slot is not None:
            return slot
        if self._free:
            slot = (self._free & -self._free).bit_length() - 1
            self._free ^= 1 << slot
            self._names[slot] = replica
        else:
            slot = len(self._names)
            self._names.append(replica)
            self._counts.append(0)
        self._slots[replica] = slot
        self._live |= 1 << slot
        return slot

    def _intern(self, mask: int) -> int:
        if len(self._interned) >= _MAX_INTERNED_MASKS:
            self._interned.clear()
        return self._interned.setdefault(mask, mask)

    def _store(self, shard: dict[int, int], block: int, mask: int) -> None:
        if mask:
            shard[block] = self._intern(mask)
        else:
            del shard[block]

    def _sweep(self, shard: dict[int, int]) -> None:
        retired = self._retired
        for block, mask in [entry for entry in shard.items() if entry[1] & retired]:
            self._uncount(mask & retired)
            self._store(shard, block, mask & ~retired)

    def _make_room(self, shard: dict[int, int]) -> None:
        """Forget a share of the oldest, so that passing over the places they leave in the dict stays cheap."""
        if self._retired:
            self._sweep(shard)
            if len(shard) < self._shard_limit:
                return
        for block in list(islice(shard, max(1, self._shard_limit // 64))):
            self._uncount(shard.pop(block))
            self.evicted_blocks += 1

    def _uncount(self, mask: int) -> None:
        for slot in _bits(mask):
            self._counts[slot] -= 1
            if not self._counts[slot] and self._retired >> slot & 1:
                self._retired ^= 1 << slot
                self._free |= 1 << slot


class PrefixMatch:
    """What `PrefixIndex.match` found. Valid until the index changes."""

    __slots__ = ("_levels", "_names", "_slots")

    def __init__(self, levels: list[tuple[int, int]], names: list[str], slots: dict[str, int]) -> None:
        self._levels = levels  # (blocks, mask of the replicas that hold exactly so many), longest first
        self._names = names
        self._slots = slots

    def blocks_of(self, replica: str) -> int:
        """Blocks of the longest prefix that this replica holds."""
        slot = self._slots.get(replica)
        if slot is not None:
            for blocks, mask in reversed(self._levels):  # most replicas hold only what all share
                if mask >> slot & 1:
                    return blocks
        return 0

    @property
    def most_blocks(self) -> int:
        """Of the longest prefix that any replica holds."""
        return self._levels[0][0] if self._levels else 0

    def longest(self, limit: int | None = None, rng: random.Random | None = None) -> dict[str, int]:
        """Replica -> matched blocks, longest first.

        Args:
            limit: at most so many replicas; of equals that do not all fit a random few. None: all.
            rng: needed with a limit.
        """
        found: dict[str, int] = {}
        for blocks, mask in self._levels:
            if limit is None or rng is None or mask.bit_count() <= limit - len(found):
                slots: Iterable[int] = _bits(mask)
            else:
                slots = _sample_bits(mask, limit - len(found), rng)
            for slot in slots:
                found[self._names[slot]] = blocks
            if len(found) == limit:
                break
        return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _sample_bits(mask: int, count: int, rng: random.Random) -> Iterable[int]:
    """`count` distinct set bits of a mask that has more. A dense mask is never enumerated."""
    width = mask.bit_length()
    if mask.bit_count() * 8 < width or mask.bit_count() < 4 * count:
        return rng.sample(list(_bits(mask)), count)
    chosen: set[int] = set()
    while len(chosen) < count:
        bit = int(rng.random() * width)
        if mask >> bit & 1:
            chosen.add(bit)
    return chosen
