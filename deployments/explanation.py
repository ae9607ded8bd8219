"""The body of `/v1/explain`: features, path, admission, what each replica would cost, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from app.decisions.routing import RoutingDecision, ScoredReplica
from app.requests import Refusal
from app.state.engines import EnginesState
from deployments.gate import Verdict
from deployments.triage import Triaged


def explanation(
    triaged: Triaged, verdict: Verdict, scored: Sequence[ScoredReplica], decision: RoutingDecision | None
) -> dict[str, Any]:
    """No text of the request is in it."""
    features = triaged.features
    return {
        "features": {
            "prompt_tokens": features.prompt_tokens,
            "max_output_tokens": features.max_output_tokens,
            "sequences": features.sequences,
            "forced_path": features.forced_path,
            "cached_tokens": features.cached_tokens,
            "heavy_prefix_tokens": features.heavy_prefix_tokens,
        },
        "path": triaged.found.path,
        "reason": triaged.found.reason,
        "priority": triaged.priority,
        "admission": _admission(verdict),
        "engines": {engines: _state(state) for engines, state in verdict.states.items()},
        "refusals": [
            {"path": path, "reason": reason, "count": count} for (path, reason), count in verdict.refusals.items()
        ],
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


def _admission(verdict: Verdict) -> dict[str, Any]:
    """A spent quota refuses before anything else does."""
    quota, decision = verdict.quota, verdict.decision
    reason = quota.reason or decision.reason
    return {
        "action": "refuse" if isinstance(reason, Refusal) else decision.action,
        "reason": reason,
        "engines": decision.engines,
        "level": decision.level.name.lower(),
        "output_cap_tokens": decision.output_cap_tokens,
        "retry_after_s": decision.retry_after_s if quota.reason is None else quota.retry_after_s,
        "prefill_s": round(decision.prefill_s, 3),
    }


def _state(state: EnginesState) -> dict[str, Any]:
    speed = state.outlook.tokens_per_s
    return {
        "level": state.level.name.lower(),
        "signal": state.signal,
        "takes_requests": state.takes_requests,
        "crowded_for_s": round(state.crowded_for_s, 1) if state.crowded else None,
        "slots": state.slots,
        "used_slots": state.used_slots,
        "waiting": state.waiting,
        "queued_prefill_tokens": round(state.outlook.queued_tokens),
        "prefill_tokens_per_s": None if speed is None else round(speed),
        "lent": {path: count for path, count in state.lent.items() if count},
    }


def _replica(scored: ScoredReplica) -> dict[str, Any]:
    standing = scored.standing
    load = standing.load
    return {
        "replica": standing.replica_id,
        "matched_tokens": scored.matched_tokens,
        "cost_tokens": round(scored.cost, 1),
        "full": scored.full,
        "stale": standing.stale,
        "age_s": round(standing.age_s, 3) if isfinite(standing.age_s) else None,
        "pending_prefill_tokens": standing.pending_prefill_tokens,
        "pending_decode_tokens": standing.pending_decode_tokens,
        "load": None if load is None else {field: getattr(load, field) for field in load.__struct_fields__},
    }
