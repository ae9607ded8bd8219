"""Keyed hashes of prompt prefixes, one per full block: equal hashes mean equal tokens from the first to that block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

# 60 bits: CPython keeps such an int in 32 bytes, one bit more takes 48. Two of a million chains collide with 4e-7.
HASH_BITS = 60
_MASK = (1 << HASH_BITS) - 1
NO_EXTRA: tuple[Any, ...] = ()
ADAPTER = "lora"


def text_extra(cache_salt: str | None = None, adapter: str | None = None) -> tuple[Any, ...]:
    """What the first block of a text prompt depends on beside its tokens; the chain hands it on to all others.

    Args:
        cache_salt: of the request: blocks are never shared across salts.
        adapter: name of its LoRA. A pair, so that no salt can pass for it.
    """
    return ((ADAPTER, adapter),) * (adapter is not None) + (cache_salt,) * bool(cache_salt)


class ChainHasher:
    """Chains of block hashes under a secret key. Without the key nobody can test guesses of a prompt against them.

    Args:
        key: up to 64 bytes; the same in the engines and ingresses of one application.
        block_size: tokens per block.
    """

    def __init__(self, key: bytes, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self._keyed = blake2b(key=key, digest_size=8, person=b"kvpulse-block")
        self._block_bytes = 4 * block_size
        self.block_size = block_size

    def block(self, parent: int | None, tokens: Sequence[int], extra: tuple[Any, ...] = NO_EXTRA) -> int:
        """The hash of one full block.

        Args:
            parent: the hash of the block before, None for the first.
            tokens: exactly `block_size` token ids.
            extra: what else the cached values depend on (cache salt, adapter, image hashes), as vLLM orders it.
        """
        return self._block(parent, array("I", tokens).tobytes(), extra)

    def _block(self, parent: int | None, raw_tokens: bytes, extra: tuple[Any, ...]) -> int:
        digest = self._keyed.copy()
        digest.update((parent + 1 if parent is not None else 0).to_bytes(8, "little"))
        digest.update(raw_tokens)
        if extra:
            digest.update(msgspec.msgpack.encode(extra))
        return int.from_bytes(digest.digest(), "little") & _MASK

    def prompt(self, tokens: Sequence[int], first_extra: tuple[Any, ...] = NO_EXTRA) -> list[int]:
        """The hashes of every full block of a text prompt; a rest shorter than a block has none.

        Args:
            first_extra: see `text_extra`.
        """
        raw = array("I", tokens).tobytes()
        hashes: list[int] = []
        parent, extra = None, first_extra
        for begin in range(0, len(raw) - self._block_bytes + 1, self._block_bytes):
            parent = self._block(parent, raw[begin : begin + self._block_bytes], extra)
            hashes.append(parent)
            extra = NO_EXTRA
        return hashes
