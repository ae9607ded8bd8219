"""What a refused client is told: the status, and why in a sentence."""

from __future__ import annotations

from app.errors import ApiError, OverloadedError, TimeoutExceededError, UnavailableError
from app.requests import Refusal, RequestPath

_BUSY = "the {engines} engines are busy: "
_SENTENCES = {
    Refusal.KV_CACHE_HIGH: _BUSY + "their KV cache is nearly full, and long prompts wait until it is not",
    Refusal.PREFILL_QUEUE_LONG: _BUSY + "prompts they have accepted will take long, and further long ones must wait",
    Refusal.PREEMPTION_STORM: _BUSY + "they interrupt requests for want of KV cache, and long prompts must wait",
    Refusal.LOAD_SHED: _BUSY + "they have been overloaded for a while, and refuse requests of the lowest priority",
    Refusal.QUEUE_FULL: _BUSY + "as many requests of this path wait as may (admission.queues)",
    Refusal.QUEUE_TOKENS_FULL: _BUSY + "as many prompt tokens of this path wait as may (admission.queues)",
    Refusal.DEADLINE_PASSED: _BUSY + "no room was found in time",
    Refusal.ENGINES_FAILED: "the {engines} engines fail, and no others take this request",
    Refusal.ABORTED_FOR_CAPACITY: "the KV cache of the {engines} engines was exhausted, and this request had to give "
    "way to others; send it again",
    Refusal.REQUESTS_PER_MINUTE: "this key has sent as many requests as it may in a minute",
    Refusal.TOKENS_PER_MINUTE: "this key has used as many tokens as it may in a minute",
    Refusal.CONCURRENT_REQUESTS: "as many requests of this key run as may at once",
}
_NOT_THE_LOAD = (Refusal.ENGINES_FAILED, Refusal.ABORTED_FOR_CAPACITY)


def refusal_error(reason: Refusal, engines: RequestPath, retry_after_s: float | None) -> ApiError:
    """429 where the client should slow down, 503 where it could not have known. The code is the reason."""
    kind = UnavailableError if reason in _NOT_THE_LOAD else OverloadedError
    return kind(_SENTENCES[reason].format(engines=engines), code=reason, retry_after_s=retry_after_s)


def no_room_in_time() -> TimeoutExceededError:
    """The client's own deadline passed while its request waited for an engine."""
    message = "no engine had room within the request's own deadline"
    return TimeoutExceededError(message, code=Refusal.DEADLINE_PASSED)
