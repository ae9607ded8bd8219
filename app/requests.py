"""The nouns of one request: what is known of it before anything is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class RequestPath(StrEnum):
    """A class of traffic. WARM is served by the hot engines at a lower priority."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as prefix caches see it.

    Args:
        length_tokens: of all of it.
        tokens: its ids; empty when its cached blocks do not depend on them alone (images, embeddings).
        cache_salt: keeps its blocks apart from those of other salts.
    """

    length_tokens: int
    tokens: Sequence[int] = ()
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """One rendered request, in tokens.

    Args:
        prompt_tokens: tokens of the longest prompt of the request.
        max_output_tokens: what the client asked for (`max_tokens`, `max_completion_tokens`), or None.
        sequences: how many sequences the engine will run (prompts times `n`).
        cached_tokens: prompt tokens that some replica's KV cache holds; 0 while that is unknown.
        forced_path: the path a permitted client asked for, or None.
    """

    prompt_tokens: int
    max_output_tokens: int | None
    sequences: int = 1
    cached_tokens: int = 0
    forced_path: RequestPath | None = None

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens
