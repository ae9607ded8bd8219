"""Contexts as Serve makes them for the autoscaling policy, and what the policy tells others."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from ray.serve._private.common import (
    DeploymentID,
    ReplicaID,
    TimeStampedValue,
)
from ray.serve.config import AutoscalingContext

from app.decisions.scaling import ScalingDecision
from app.state.scaling_inputs import EngineStats, IngressStats
from deployments.autoscaling import CacheAwareScalingPolicy
from deployments.scaling_book import ScalingBook
from deployments.scaling_report import DecisionPublisher

APP = "kvpulse"
NOW_S = 1.8e9
RULES: dict[str, Any] = {"capacity_tokens_per_s": 1000.0, "smoothing_s": 1.0}
BUSY = EngineStats(
    kv_usage_ratio=0.3,
    queued_prefill_tokens=0,
    running_sequences=4,
    waiting_sequences=0,
    computed_tokens_per_s=1000,
    busy_ratio=1.0,
    preemptions_per_s=0,
    evicted_blocks_per_s=0,
)


def offering(hot_tokens_per_s: float) -> IngressStats:
    quiet = dict.fromkeys(IngressStats.__struct_fields__, 0.0)
    return msgspec.convert({**quiet, "hot_offered_tokens_per_s": hot_tokens_per_s}, IngressStats)


def context(
    deployment: str,
    stats: EngineStats | IngressStats | None = None,
    *,
    running: int = 1,
    target: int = 1,
    most: int = 4,
    now_s: float = NOW_S,
    age_s: float = 1.0,
    values: dict[str, float] | None = None,
) -> AutoscalingContext:
    """Every running replica has said `stats` three times, the last time `age_s` ago."""
    deployment_id = DeploymentID(deployment, APP)
    replicas = [ReplicaID(f"replica{number}", deployment_id) for number in range(running)]
    told = values if values is not None else msgspec.to_builtins(stats) if stats else {}
    raw = {
        name: {replica: [TimeStampedValue(now_s - age_s - back, value) for back in (4, 2, 0)] for replica in replicas}
        for name, value in told.items()
    }
    return AutoscalingContext(
        deployment_id=deployment_id,
        deployment_name=deployment,
        app_name=APP,
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=0,
        total_queued_requests=0,
        aggregated_metrics={},
        raw_metrics=raw,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=most,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=now_s,
        config=None,
    )


class FakeStore:
    """Keeps the last value, and tells when one has come."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.written = threading.Event()

    def replace(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        self.written.set()

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)


class FakeMetrics:
    def __init__(self) -> None:
        self.recorded: list[tuple[ScalingDecision, bool]] = []

    def record(self, decision: ScalingDecision, counts: bool) -> None:
        self.recorded.append((decision, counts))


class Rig:
    """The policies of the three deployments, as one controller has them."""

    def __init__(self, **rules: Any) -> None:
        self.store, self.metrics = FakeStore(), FakeMetrics()
        self.book = ScalingBook(self.metrics, DecisionPublisher(APP, self.store))  # type: ignore[arg-type]  # a stand-in
        settings = {"rules": {**RULES, **rules}}
        self.ingress, self.hot = (CacheAwareScalingPolicy(settings, lambda app: self.book) for _ in range(2))

    def tick(self, seconds: float, hot: AutoscalingContext | None = None, tokens_per_s: float = 2000.0) -> int:
        now_s = NOW_S + seconds
        self.ingress(context("Ingress", offering(tokens_per_s), now_s=now_s, most=1))
        desired, state = self.hot(hot or context("HotEngine", BUSY, now_s=now_s))
        assert state == {}
        return desired
