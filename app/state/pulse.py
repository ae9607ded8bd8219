"""What an engine replica tells of itself, 10 times a second: its cache as hashes, its load as numbers, no content."""

from __future__ import annotations

import msgspec


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one engine, at the end of one of its steps.

    Args:
        running_requests: sequences in the engine's batch.
        waiting_requests: sequences it has queued.
        queued_prefill_tokens: prompt tokens that its queued and running sequences have still to compute.
        decode_tokens: tokens of context of the sequences that are decoding; what each step has to read.
        kv_usage_ratio: blocks in use by running sequences over all, 0 to 1. Cached but unused blocks count as free.
        kv_blocks: blocks of the whole cache.
        preemptions: since the engine started.
        prefix_query_tokens: likewise, prompt tokens looked up in the prefix cache; not those looked up again after a
            preemption.
        prefix_hit_tokens: of those, tokens that the cache held.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    queued_prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_usage_ratio: float = 0.0
    kv_blocks: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


class CacheChange(msgspec.Struct, frozen=True, kw_only=True):
    """The net change of one replica's cache since the message before. Applied in the order of the fields.

    Args:
        cleared: forget everything held before.
        removed: chain hashes of blocks that the cache no longer holds.
        stored: chain hashes of blocks that it holds now, or will: those of a prompt may be told when its request is
            accepted, so that routers which share no state see a new prefix before it is computed, and as removed when
            the request ends without them. No hash is in both.
    """

    cleared: bool = False
    removed: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """One message of the feed: what changed since the one before, and the load now.

    Args:
        incarnation: of the publisher; another one is another cache.
        sequence: counts the publisher's pulses, without gaps.
    """

    incarnation: str
    sequence: int
    change: CacheChange
    load: ReplicaLoad


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All that a cache held after the pulse `sequence`.

    Args:
        hashes: 8 bytes each in the byte order of the node; a cluster has one.
    """

    incarnation: str
    sequence: int
    hashes: bytes
    load: ReplicaLoad
