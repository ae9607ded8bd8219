"""What an ingress tells the board once per second: counts, decisions and frequent prefixes. No text, no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from app.requests import RequestPath


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about one request, and what became of it.

    Args:
        admission: `home`, `spilled`, `failover`, or why it was refused.
        replica: empty when it was sent to none; likewise `routing`.
        matched_tokens: prompt tokens that the replica was expected to hold.
        ttft_s: None without a streamed answer.
    """

    path: RequestPath
    reason: str
    priority: int
    engines: RequestPath
    admission: str
    outcome: str
    replica: str = ""
    routing: str = ""
    prompt_tokens: int = 0
    matched_tokens: int = 0
    waited_s: float = 0.0
    ttft_s: float | None = None


class PathReport(msgspec.Struct, frozen=True):
    """The requests of one path that ended since the report before.

    Args:
        outcomes: how many ended in which way.
        ttft_s: of those that were streamed; the latest, if there were too many.
    """

    outcomes: Mapping[str, int]
    ttft_s: Sequence[float]


class EnginesReport(msgspec.Struct, frozen=True):
    """One path's engines as this ingress sees them now. `level` is a `Level`, `signal` what it comes from."""

    queued_requests: int
    level: int
    signal: str | None = None


class Prefix(msgspec.Struct, frozen=True):
    """The beginning that many prompts share. It holds content: it goes to engines, and never to a page.

    Args:
        cache_salt: of those prompts. An engine that computes the prefix must use the same, or another tenant's
            requests would hit it.
    """

    tokens: Sequence[int]
    cache_salt: str | None = None


class PrefixCount(msgspec.Struct, frozen=True):
    """Requests with a frequent prefix since the report before.

    Args:
        engines: where they ran.
        key: chain hash of its last block, which depends on its salt too.
        prefix: None when the board has it.
    """

    engines: RequestPath
    key: int
    requests: int
    prefix: Prefix | None = None


class IngressReport(msgspec.Struct, frozen=True):
    """Of one ingress replica.

    Args:
        ingress: its unique id.
        decisions: the latest of this second, oldest first.
    """

    ingress: str
    paths: Mapping[RequestPath, PathReport]
    engines: Mapping[RequestPath, EnginesReport]
    decisions: Sequence[Decision] = ()
    prefixes: Sequence[PrefixCount] = ()


class ScalingEvent(msgspec.Struct, frozen=True):
    """The replicas of one path changed, or the policy wants them to."""

    engines: RequestPath
    replicas_before: int
    replicas: int
    reason: str
