"""Which replica of a path gets a request, and why: the one where it costs least, in tokens still to compute."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from enum import StrEnum

import msgspec

from app.config.schema import RoutingConfig
from app.state.cluster_view import ClusterView, ReplicaStanding

# Beside the replicas that hold the longest prefixes only a few random ones are compared: without a match nothing but
# the load matters, and the least loaded of eight is nearly as good as the least loaded of all. It also keeps routers
# that share no state apart. Of up to eight replicas all are compared.
_HOLDERS = 8
_OTHERS = 8


class RoutingReason(StrEnum):
    """Why a replica was chosen."""

    ONLY_REPLICA = "only_replica"
    PREFIX_HIT = "prefix_hit"
    LEAST_LOADED = "least_loaded"
    TIE = "tie"
    STALE_PROBE = "stale_probe"
    FALLBACK = "fallback"  # no replica of known load has room


class RoutingRequest(msgspec.Struct, frozen=True):
    """What the choice depends on.

    Args:
        prompt_tokens: all of the prompt.
        hashes: chain hashes of its full blocks, first to last.
        block_size: tokens per block of this path's engines.
        excluded: unique ids of replicas to avoid: they have just failed this request, or are full.
        session_replica: the replica that served this request's session last.
    """

    prompt_tokens: int
    hashes: Sequence[int]
    block_size: int
    excluded: Collection[str] = ()
    session_replica: str | None = None


class ScoredReplica(msgspec.Struct, frozen=True):
    """The cost of one replica.

    Args:
        matched_tokens: prompt tokens that its cache is expected to save.
        cost: tokens. That of a stale replica counts no report.
        full: its KV cache has no room. It may still be the cheapest, but a replica of unknown load is tried before it.
        decode_tokens: of running context, counted in the cost too.
    """

    standing: ReplicaStanding
    matched_tokens: int
    cost: float
    full: bool
    decode_tokens: int


class RoutingDecision(msgspec.Struct, frozen=True):
    """The chosen replica. The reason goes to headers, metrics and logs unchanged."""

    replica_id: str
    reason: RoutingReason
    matched_tokens: int
    cost: float


def route(
    request: RoutingRequest, view: ClusterView, rules: RoutingConfig, rng: random.Random
) -> RoutingDecision | None:
    """The replica with the lowest cost of those worth comparing. None: there is no replica.

    A stale replica gets one request per `probe_period_s`, so that one whose reports are lost is not lost itself.
    """
    scored = _score_all(
        request,
        view.sample(request.hashes, rng, holders=_HOLDERS, others=_OTHERS, also=request.session_replica),
        rules,
    )
    if not any(_known(option) and option.standing.replica_id not in request.excluded for option in scored):
        scored = explain(request, view, rules)
    return decide(request, scored, rules, rng)


def explain(request: RoutingRequest, view: ClusterView, rules: RoutingConfig) -> list[ScoredReplica]:
    """The cost of every replica."""
    return _score_all(request, view.standings(request.hashes), rules)


def decide(
    request: RoutingRequest, options: Sequence[ScoredReplica], rules: RoutingConfig, rng: random.Random
) -> RoutingDecision | None:
    """The choice among replicas that are scored."""
    if not options:
        return None
    if len(options) == 1:
        return _decision(options[0], RoutingReason.ONLY_REPLICA)
    allowed = [option for option in options if option.standing.replica_id not in request.excluded]
    if not allowed:
        return _decision(rng.choice(_cheapest(options, rules)), RoutingReason.FALLBACK)
    known = [option for option in allowed if _known(option)]
    unknown = [option for option in allowed if not _known(option)]
    due = [option for option in unknown if option.standing.unprobed_s >= rules.probe_period_s]
    if known and due:
        return _decision(rng.choice(due), RoutingReason.STALE_PROBE)
    has_room = any(not option.full for option in known)
    tied = _least_busy(_cheapest(known if has_room else unknown or known, rules))
    chosen = rng.choice(tied)
    if not has_room:
        return _decision(chosen, RoutingReason.FALLBACK)
    if chosen.matched_tokens:
        return _decision(chosen, RoutingReason.PREFIX_HIT)
    return _decision(chosen, RoutingReason.LEAST_LOADED if len(tied) == 1 else RoutingReason.TIE)


def _score_all(
    request: RoutingRequest, standings: Sequence[ReplicaStanding], rules: RoutingConfig
) -> list[ScoredReplica]:
    return [score(request, standing, rules) for standing in standings]


def score(request: RoutingRequest, standing: ReplicaStanding, rules: RoutingConfig) -> ScoredReplica:
    """What the request costs on one replica."""
    # As vLLM does: the last token of a prompt is always computed, and only full blocks are reused.
    block_size = request.block_size
    matched = min(standing.matched_blocks, (request.prompt_tokens - 1) // block_size) * block_size
    if matched < rules.min_match_tokens:
        matched = 0
    cost = rules.uncached_weight * (request.prompt_tokens - matched) + standing.pending_prefill_tokens
    decoding = standing.pending_decode_tokens
    full = False
    penalty = 0.0
    load = standing.load
    if load is not None and not standing.stale:
        cost += load.queued_prefill_tokens
        decoding += load.decode_tokens
        full = load.kv_usage_ratio >= rules.kv_full_ratio
        busy = load.kv_usage_ratio - rules.kv_busy_ratio
        if busy > 0:
            penalty = rules.kv_penalty_tokens * busy / (1 - rules.kv_busy_ratio)
    if standing.replica_id == request.session_replica:
        cost -= rules.session_discount_tokens
    return ScoredReplica(standing, matched, cost + rules.decode_weight * decoding + penalty, full, decoding)


def _cheapest(options: Sequence[ScoredReplica], rules: RoutingConfig) -> list[ScoredReplica]:
    limit = min(option.cost for option in options) + rules.tie_tolerance_tokens
    return [option for option in options if option.cost <= limit]


def _least_busy(options: Sequence[ScoredReplica]) -> list[ScoredReplica]:
    """Of equals: a prompt beside an answer that is being written makes every token of it wait."""
    least = min(option.decode_tokens for option in options)
    return [option for option in options if option.decode_tokens == least]


def _known(option: ScoredReplica) -> bool:
    return not option.standing.stale


def _decision(option: ScoredReplica, reason: RoutingReason) -> RoutingDecision:
    return RoutingDecision(option.standing.replica_id, reason, option.matched_tokens, option.cost)
