"""What a prompt would wait for on one path's engines, and how long."""

from __future__ import annotations

from dataclasses import dataclass

from app.requests import RequestPath


@dataclass(frozen=True, slots=True)
class PrefillOutlook:
    """The prompts that engines have accepted and not yet computed.

    Steps are shared: beside a long prefill, which takes a chunk of each step, a short one is soon done. So a prompt
    waits for no more of another one than it computes itself, or than one chunk, and before that for the step that is
    under way, of which a chunk is left. Less urgent ones yield.

    Args:
        queued_tokens: of the least loaded replica, whoever sent them.
        ours: path and uncached tokens of this process's requests that have no first token yet, on all replicas.
            Upper bounds: how far they have got is in `queued_tokens` only.
        replicas: that have been heard of lately.
        chunk_tokens: most tokens of one prompt in a step.
        tokens_per_s: at which a replica takes prompts in; None before it has been seen.
    """

    queued_tokens: float = 0.0
    ours: tuple[tuple[RequestPath, int], ...] = ()
    replicas: int = 1
    chunk_tokens: int = 1
    tokens_per_s: float | None = None

    def ahead_tokens(self, path: RequestPath, uncached_tokens: int) -> float:
        """What the least loaded replica computes before a newcomer's first token, without its own prompt."""
        if not self.queued_tokens:
            return 0.0
        longest = max(uncached_tokens, self.chunk_tokens)
        rivals = sum(min(tokens, longest) for other, tokens in self.ours if other.priority() <= path.priority())
        of_others = max(0.0, self.queued_tokens - sum(tokens for _, tokens in self.ours) / self.replicas)
        return min(self.queued_tokens, self.chunk_tokens + of_others + rivals / self.replicas)

    def seconds(self, tokens: float) -> float:
        """To compute them; 0 while the speed is unknown."""
        return tokens / self.tokens_per_s if self.tokens_per_s else 0.0


NOTHING_QUEUED = PrefillOutlook()
