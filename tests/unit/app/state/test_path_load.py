"""What reports of engines and ingresses add up to, and what happens to the sum when some are missing."""

from __future__ import annotations

import msgspec
import pytest

from app.config.scaling import ScalingConfig
from app.requests import RequestPath
from app.state.fleet import Fleet, PathFleet, Report
from app.state.path_load import LoadGauge, PathLoad
from app.state.scaling_inputs import EngineStats, IngressStats

HOT, COLD = RequestPath.HOT, RequestPath.COLD
STALE_S = 60.0


def engine(**figures: float) -> EngineStats:
    idle = dict.fromkeys(EngineStats.__struct_fields__, 0.0) | {"prefix_hit_ratio": None}
    return msgspec.convert({**idle, **figures}, EngineStats)


def ingress(**figures: float) -> IngressStats:
    return msgspec.convert({**dict.fromkeys(IngressStats.__struct_fields__, 0.0), **figures}, IngressStats)


class Rig:
    def __init__(self, path: RequestPath = HOT) -> None:
        self.gauge = LoadGauge(path, ScalingConfig(), full_at=8)
        self.now_s = 1e9

    def see(
        self,
        engines: list[tuple[EngineStats, float]],
        ingresses: list[tuple[IngressStats, float]],
        *,
        running: int | None = None,
        ingress_replicas: int = 1,
        seconds: int = 1,
    ) -> PathLoad | None:
        replicas = len(engines) if running is None else running
        path = PathFleet(replicas, replicas, 1, 8, [Report(*told) for told in engines])
        fleet = Fleet({HOT: path, COLD: path}, ingress_replicas, [Report(*told) for told in ingresses])
        for _ in range(seconds):
            self.now_s += 1
            load = self.gauge.observe(fleet, self.now_s)
        return load


def known(load: PathLoad | None) -> PathLoad:
    assert load is not None
    return load


def test_ingresses_and_engines_add_up() -> None:
    offered = ingress(hot_offered_tokens_per_s=100, hot_offered_requests_per_s=1, hot_queued_tokens=500)
    engines = [(engine(kv_usage_ratio=0.4, queued_prefill_tokens=200, preemptions_per_s=1), 1.0)] * 2
    load = known(Rig().see(engines, [(offered, 1.0)] * 3, ingress_replicas=3))
    assert load.complete
    assert load.demand_tokens_per_s == pytest.approx(300)
    assert load.backlog_tokens == pytest.approx(3 * 500 + 2 * 200)
    assert load.kv_usage_replicas == pytest.approx(0.8)
    assert load.preemptions_per_s == pytest.approx(1)


def test_each_path_has_its_own_part_of_what_ingresses_tell() -> None:
    offered = ingress(hot_offered_tokens_per_s=100, cold_offered_tokens_per_s=700)
    load = known(Rig(COLD).see([(engine(), 1.0)], [(offered, 1.0)]))
    assert load.demand_tokens_per_s == pytest.approx(700)


def test_short_prompts_that_wait_count_as_the_work_they_will_be() -> None:
    offered = ingress(hot_offered_tokens_per_s=1000, hot_offered_requests_per_s=2, hot_queued_requests=10)
    load = known(Rig().see([(engine(waiting_sequences=2), 1.0)], [(offered, 1.0)]))
    assert load.backlog_tokens == pytest.approx(12 * 500)


def test_a_replica_not_heard_of_is_taken_to_be_like_the_others_and_the_picture_is_not_complete() -> None:
    engines = [(engine(kv_usage_ratio=0.6), 1.0), (engine(kv_usage_ratio=0.6), 1.0), (engine(), STALE_S)]
    load = known(Rig().see(engines, [(ingress(), 1.0)]))
    assert load.kv_usage_replicas == pytest.approx(1.8)
    assert not load.complete


def test_so_is_an_ingress() -> None:
    offered = ingress(hot_offered_tokens_per_s=100, hot_offered_requests_per_s=1)
    load = known(Rig().see([(engine(), 1.0)], [(offered, 1.0), (offered, STALE_S)], ingress_replicas=2))
    assert load.demand_tokens_per_s == pytest.approx(200)
    assert not load.complete


def test_without_any_ingress_what_engines_compute_stands_for_the_demand() -> None:
    load = known(Rig().see([(engine(computed_tokens_per_s=300, busy_ratio=1.0), 1.0)], [(ingress(), STALE_S)]))
    assert load.demand_tokens_per_s == pytest.approx(300)
    assert not load.complete


def test_without_any_engine_nothing_is_known() -> None:
    assert Rig().see([(engine(), STALE_S)], [(ingress(), 1.0)]) is None
    assert Rig().see([], [(ingress(), 1.0)], running=1) is None


def test_expected_tokens_are_corrected_by_what_was_computed_while_nothing_waits() -> None:
    rig = Rig()
    offered = ingress(hot_offered_tokens_per_s=900, hot_offered_requests_per_s=2)
    busy = engine(computed_tokens_per_s=300, busy_ratio=1.0, running_sequences=4)
    assert known(rig.see([(busy, 1.0)], [(offered, 1.0)])).demand_tokens_per_s == pytest.approx(900, rel=0.05)
    load = known(rig.see([(busy, 1.0)], [(offered, 1.0)], seconds=900))
    assert load.demand_tokens_per_s == pytest.approx(300, rel=0.05)


def test_nothing_is_corrected_by_engines_that_cannot_keep_up() -> None:
    rig = Rig()
    offered = ingress(hot_offered_tokens_per_s=900, hot_offered_requests_per_s=2)
    full = engine(computed_tokens_per_s=300, busy_ratio=1.0, waiting_sequences=50, running_sequences=8)
    load = known(rig.see([(full, 1.0)], [(offered, 1.0)], seconds=900))
    assert load.demand_tokens_per_s == pytest.approx(900, rel=0.05)
