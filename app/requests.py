"""The nouns of one request: what is known of it before anything is decided, and how it can end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PRIORITY_BAND = 100  # one path's priorities; a key moves its requests inside their band only
DEFAULT_PRIORITY = 50


class RequestPath(StrEnum):
    """A class of traffic. WARM is served by the hot engines at a lower priority."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"

    @property
    def engines(self) -> RequestPath:
        """The engines that serve this path at home: HOT or COLD."""
        return RequestPath.COLD if self is RequestPath.COLD else RequestPath.HOT

    @property
    def other_engines(self) -> RequestPath:
        return RequestPath.HOT if self is RequestPath.COLD else RequestPath.COLD

    def priority(self, within: int = DEFAULT_PRIORITY) -> int:
        """vLLM's priority, lower is more urgent.

        Args:
            within: 0 to 99, the place inside the path's band: no key makes cold work as urgent as hot.
        """
        return PRIORITY_BAND * list(RequestPath).index(self) + within


class Refusal(StrEnum):
    """Why a request was not served. Response headers, error codes, metrics and logs carry it unchanged."""

    KV_CACHE_HIGH = "kv_cache_high"
    PREFILL_QUEUE_LONG = "prefill_queue_long"
    PREEMPTION_STORM = "preemption_storm"
    LOAD_SHED = "load_shed"
    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    ENGINES_FAILED = "engines_failed"
    DEADLINE_PASSED = "deadline_passed"
    ABORTED_FOR_CAPACITY = "aborted_for_capacity"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENT_REQUESTS = "concurrent_requests"


class Outcome(StrEnum):
    """How a request that was let in ended. Only ENGINE_FAILED speaks against the engines."""

    ANSWERED = "answered"
    CLIENT_ERROR = "client_error"
    CANCELLED = "cancelled"
    ENGINE_FAILED = "engine_failed"


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
        heavy_prefix_tokens: length of the longest frequent prefix that the prompt begins with.
        forced_path: the path a permitted client asked for, or None.
        key_priority: 0 to 99, the place inside the path's priority band that the client's key gives.
    """

    prompt_tokens: int
    max_output_tokens: int | None
    sequences: int = 1
    cached_tokens: int = 0
    heavy_prefix_tokens: int = 0
    forced_path: RequestPath | None = None
    key_priority: int = DEFAULT_PRIORITY

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def least_context_tokens(self) -> int:
        """The prompt with the answer that was asked for, or with its first token."""
        return self.prompt_tokens + max(1, self.max_output_tokens or 1)

    def expected_output_tokens(self, assumed: int) -> int:
        """Of one sequence.

        Args:
            assumed: stands for a missing `max_tokens`.
        """
        return assumed if self.max_output_tokens is None else self.max_output_tokens
