"""A prefix cache that keeps to vLLM's rules and tells of itself in vLLM's events; it knows what it truly holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from app.state.block_ledger import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from app.state.chain_hashes import ChainHasher, text_extra

HASHER = ChainHasher(b"a key for the tests", block_size=4)


class FakeEngineCache:
    """Physical blocks by vLLM's hash. `take_batch` gives the events since the last call, as one engine step."""

    def __init__(self, hasher: ChainHasher = HASHER) -> None:
        self._hasher = hasher
        self._blocks: Counter[int] = Counter()
        self._chains: dict[int, int] = {}
        self._events: list[Any] = []
        self.now_s = 1000.0

    @property
    def held(self) -> set[int]:
        """The chain hashes that a correct view has."""
        return {self._chains[block] for block, copies in self._blocks.items() if copies}

    def compute(
        self, tokens: Sequence[int], salt: str | None = None, lora: str | None = None, at_once: int = 1
    ) -> None:
        """Run a prompt; `at_once` requests compute it in the same step, so each stores its blocks."""
        size = self._hasher.block_size
        hashes = self._hash_all(tokens, salt, lora)
        cached = next((n for n, block in enumerate(hashes) if not self._blocks[block]), len(hashes))
        if cached == len(hashes):
            return
        for _ in range(at_once):
            self._blocks.update(hashes[cached:])
            self._events.append(
                BlockStored(
                    block_hashes=hashes[cached:],
                    parent_block_hash=hashes[cached - 1] if cached else None,
                    token_ids=list(tokens[cached * size : len(hashes) * size]),
                    block_size=size,
                    medium="GPU",
                    lora_name=lora,
                    extra_keys=[self._extra(n, salt, lora) for n in range(cached, len(hashes))],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            )

    def evict(self, choice: int) -> None:
        """Drop one physical block."""
        present = sorted(self._blocks.elements())
        if present:
            block = present[choice % len(present)]
            self._blocks[block] -= 1
            self._events.append(BlockRemoved([block], medium="GPU", group_idx=0))

    def clear(self) -> None:
        self._blocks.clear()
        self._events.append(AllBlocksCleared())

    def take_batch(self) -> EventBatch:
        self.now_s += 0.01
        events, self._events = self._events, []
        return EventBatch(self.now_s, events)

    def _hash_all(self, tokens: Sequence[int], salt: str | None, lora: str | None) -> list[int]:
        size = self._hasher.block_size
        chains = self._hasher.prompt(tokens, text_extra(salt, lora))
        hashes: list[int] = []
        for n, chain in enumerate(chains):
            content = (hashes[-1:], list(tokens[n * size : (n + 1) * size]), self._extra(n, salt, lora), lora)
            hashes.append(int.from_bytes(sha256(repr(content).encode()).digest()[:8], "big"))
            self._chains[hashes[-1]] = chain
        return hashes

    @staticmethod
    def _extra(block: int, salt: str | None, lora: str | None) -> tuple[Any, ...] | None:
        return ((lora,) * (lora is not None) + (salt,) * (salt is not None and block == 0)) or None


_prompts = st.lists(st.sampled_from([0, 1]), min_size=4, max_size=16)
# What may happen to a cache, as the name of a method and its arguments; ("tell",) is the end of an engine step.
cache_actions = st.one_of(
    st.tuples(
        st.just("compute"), _prompts, st.sampled_from([None, "a", "b"]), st.sampled_from([None, "a"]), st.integers(1, 3)
    ),
    st.tuples(st.just("evict"), st.integers(0, 1000)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("tell")),
)


def perform(cache: FakeEngineCache, action: tuple[Any, ...]) -> None:
    name, *arguments = action
    if name != "tell":
        getattr(cache, name)(*arguments)
