"""Replicas that report what they are told to, and routes to them by rules that are easy to compute with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from app.config.schema import RoutingConfig
from app.decisions.routing import RoutingDecision, RoutingRequest, route
from app.state.cluster_view import ClusterView
from app.state.pulse import CacheChange, ReplicaLoad
from tests.fakes import FakeClock

BLOCK = 32
RULES = RoutingConfig(
    uncached_weight=1.0,
    min_match_tokens=64,
    tie_tolerance_tokens=50,
    decode_weight=0.1,
    kv_busy_ratio=0.8,
    kv_full_ratio=0.95,
    kv_penalty_tokens=1000,
    session_discount_tokens=100,
    probe_period_s=5.0,
)
SYSTEM = tuple(range(1, 11))  # ten blocks that every request begins with
PROMPT = (*SYSTEM, *range(100, 122))  # 1,024 tokens and their 32 blocks


class Fleet:
    """Replicas that report what they are told to."""

    def __init__(self, replica_ids: Sequence[str], seed: int = 7) -> None:
        self.clock = FakeClock()
        self.rng = random.Random(seed)
        self.view = ClusterView(self.clock, stale_after_s=1.0, settle_s=0.2)
        self.view.keep_only(replica_ids)
        for replica_id in replica_ids:
            self.report(replica_id)

    def report(self, replica_id: str, stored: Sequence[int] = (), **load: float) -> None:
        self.view.apply(replica_id, CacheChange(stored=tuple(stored)), ReplicaLoad(**load))

    def decide(self, hashes: Sequence[int] = PROMPT, rest_tokens: int = 0, **request: object) -> RoutingDecision:
        decision = route(
            RoutingRequest(len(hashes) * BLOCK + rest_tokens, hashes, BLOCK, **request), self.view, RULES, self.rng
        )
        assert decision is not None
        return decision

    def choices(self, times: int = 600, **request: object) -> Counter[str]:
        return Counter(self.decide(**request).replica_id for _ in range(times))


def ids(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]
