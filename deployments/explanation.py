"""The body of `/v1/explain`: features, path, what each replica would cost, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.decisions.classifier import Classification
from app.decisions.routing import RoutingDecision, ScoredReplica
from deployments.rendering import Rendered


def explanation(
    rendered: Rendered,
    classification: Classification,
    scored: Sequence[ScoredReplica],
    decision: RoutingDecision | None,
) -> dict[str, Any]:
    """No text of the request is in it."""
    return {
        "features": {
            "prompt_tokens": rendered.features.prompt_tokens,
            "max_output_tokens": rendered.features.max_output_tokens,
            "sequences": rendered.features.sequences,
            "forced_path": rendered.features.forced_path,
        },
        "path": classification.path,
        "reason": classification.reason,
        "replicas": [_replica(replica) for replica in scored],
        "choice": None
        if decision is None
        else {
            "replica": decision.replica_id,
            "reason": decision.reason,
            "matched_tokens": decision.matched_tokens,
            "cost_tokens": round(decision.cost, 1),
        },
    }


def _replica(scored: ScoredReplica) -> dict[str, Any]:
    standing = scored.standing
    load = standing.load
    return {
        "replica": standing.replica_id,
        "matched_tokens": scored.matched_tokens,
        "cost_tokens": round(scored.cost, 1),
        "usable": scored.usable,
        "stale": standing.stale,
        "age_s": None if standing.age_s is None else round(standing.age_s, 3),
        "pending_prefill_tokens": standing.pending_prefill_tokens,
        "pending_decode_tokens": standing.pending_decode_tokens,
        "load": None if load is None else {field: getattr(load, field) for field in load.__struct_fields__},
    }
