"""How many prompt tokens an engine has still to compute, seen from the blocks that its cache holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.state.block_ledger import BlockLedger
from app.state.chain_hashes import NO_EXTRA


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text prompt that has no first token of answer yet. `first_extra`: see ChainHasher.prompt."""

    tokens: Sequence[int]
    first_extra: tuple[Any, ...] = NO_EXTRA


@dataclass(slots=True)
class _Progress:
    blocks: int
    next_chain: int | None  # of the first block not seen in the cache; None where the prompt has no further full one


class PrefillProgress:
    """The prefix of a prompt that is in the cache need not be computed, or has been: a chunked prefill shows itself as
    blocks that appear. No engine tells this of requests that wait.

    It understates when blocks that a waiting prompt could have used are evicted before its turn, and overstates by the
    tokens computed since the last full block and by those in blocks that cannot be claimed (images, adapters).
    """

    def __init__(self, ledger: BlockLedger) -> None:
        self._ledger = ledger
        self._progress: dict[str, _Progress] = {}

    def remaining_tokens(self, prompts: Mapping[str, Prompt]) -> int:
        """Of all these prompts together, by request id. Each block of each is hashed once over repeated calls."""
        self._progress = {request: self._advanced(request, prompt) for request, prompt in prompts.items()}
        size = self._ledger.hasher.block_size
        # The last token is always computed.
        return sum(
            max(1, len(prompt.tokens) - self._progress[request].blocks * size) for request, prompt in prompts.items()
        )

    def _advanced(self, request: str, prompt: Prompt) -> _Progress:
        progress = self._progress.get(request) or _Progress(0, self._chain(prompt, 0, None))
        while progress.next_chain is not None and self._ledger.holds(progress.next_chain):
            progress.blocks += 1
            progress.next_chain = self._chain(prompt, progress.blocks, progress.next_chain)
        return progress

    def _chain(self, prompt: Prompt, block: int, parent: int | None) -> int | None:
        size = self._ledger.hasher.block_size
        tokens = prompt.tokens[block * size : (block + 1) * size]
        if len(tokens) < size:
            return None
        return self._ledger.hasher.block(parent, tokens, prompt.first_extra if block == 0 else NO_EXTRA)
