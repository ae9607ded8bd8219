"""What replicas tell the autoscaling policy about themselves: rates, ratios and levels, as flat numbers.

Serve carries them as `dict[str, float]` (`record_autoscaling_stats`) and averages over a look-back window, so there is
no cumulative count among them. What is not known is left out: no key is ever a stand-in for "unknown". No name is one
of Serve's own, which would take the value for what it has counted itself.
"""

from __future__ import annotations

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one engine replica.

    Args:
        kv_usage_ratio: blocks in use over all.
        queued_prefill_tokens: accepted by the engine and not computed.
        running_sequences: sequences in its batch.
        waiting_sequences: sequences it has queued.
        computed_tokens_per_s: prompt tokens computed (not taken from the cache) plus tokens generated.
        busy_ratio: share of the time in which it had a request.
        preemptions_per_s: sequences preempted.
        evicted_blocks_per_s: blocks that left the prefix cache for others.
        prefix_hit_ratio: hit over looked up tokens; None without lookups.
    """

    kv_usage_ratio: float
    queued_prefill_tokens: float
    running_sequences: float
    waiting_sequences: float
    computed_tokens_per_s: float
    busy_ratio: float
    preemptions_per_s: float
    evicted_blocks_per_s: float
    prefix_hit_ratio: float | None = None


class IngressStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of one ingress replica, by the engines that requests belong to.

    Args:
        hot_offered_tokens_per_s: uncached prompt plus expected answer of what arrived, refused or not.
        hot_offered_requests_per_s: likewise.
        hot_queued_requests: waiting in the ingress for a slot.
        hot_queued_tokens: prompt tokens of those, still to compute.
    """

    hot_offered_tokens_per_s: float
    hot_offered_requests_per_s: float
    hot_queued_requests: float
    hot_queued_tokens: float
    cold_offered_tokens_per_s: float
    cold_offered_requests_per_s: float
    cold_queued_requests: float
    cold_queued_tokens: float
