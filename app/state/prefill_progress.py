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
    chains: list[int]  # of the prompt's full blocks
    blocks: int = 0  # how many of them, from the first on, have been seen in the cache


class PrefillProgress:
    """The prefix of a prompt that is in the cache need not be computed, or has been: a chunked prefill shows itself as
    blocks that appear. No engine tells this of requests that wait.

    It understates when blocks that a waiting prompt could have used are evicted before its turn, and overstates by the
    tokens computed since the last full block and by those in blocks that cannot be claimed (images, adapters).

    The ledger is told what these requests are about to store.
    """

    def __init__(self, ledger: BlockLedger) -> None:
        self._ledger = ledger
        self._progress: dict[str, _Progress] = {}

    def remaining_tokens(self, prompts: Mapping[str, Prompt]) -> int:
        """Of all these prompts together, by request id. Each is hashed once over repeated calls."""
        for gone in self._progress.keys() - prompts.keys():
            self._ledger.expect_no_more(self._progress.pop(gone).chains)
        return sum(self._remaining(request, prompt) for request, prompt in prompts.items())

    def _remaining(self, request: str, prompt: Prompt) -> int:
        hasher = self._ledger.hasher
        progress = self._progress.get(request)
        if progress is None:
            progress = self._progress[request] = _Progress(hasher.prompt(prompt.tokens, prompt.first_extra))
            self._ledger.expect(progress.chains)
        while progress.blocks < len(progress.chains) and self._ledger.holds(progress.chains[progress.blocks]):
            progress.blocks += 1
        return max(1, len(prompt.tokens) - progress.blocks * hasher.block_size)  # the last token is always computed
