"""One engine replica's instruments, and what the autoscaling policy gets of the same sources."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource

from app import metrics
from app.metrics import Metric
from app.state.block_ledger import AllBlocksCleared, BlockLedger, EventBatch
from app.state.lately import BusyTime
from app.state.pulse import ReplicaLoad
from app.state.scaling_inputs import EngineStats
from deployments.engine_telemetry import EngineTelemetry, step_statistics
from deployments.telemetry import Telemetry
from tests.fake_engine_cache import HASHER, FakeEngineCache
from tests.fake_steps import iteration, scheduler
from tests.fakes import FakeClock
from tests.kept_metrics import Kept


class Replica:
    def __init__(self) -> None:
        self.clock, self.kept, self.cache = FakeClock(), Kept(), FakeEngineCache()
        self.telemetry = Telemetry(Resource.get_empty(), [(self.kept, 3600.0)])
        self.statistics = step_statistics(self.telemetry, "hot")
        self.load = ReplicaLoad(kv_blocks=100)
        self.ledger = BlockLedger(HASHER, 1000)
        self.busy = BusyTime(self.clock)
        self.measured = EngineTelemetry(
            self.telemetry, "hot", self.statistics, lambda: self.load, self.ledger, self.busy, self.clock
        )

    def value(self, metric: Metric) -> Any:
        self.telemetry.flush()
        if metric.instrument_name not in self.kept.metrics:
            return None
        (point,) = self.kept.metrics[metric.instrument_name].data.data_points
        assert point.attributes == {"engines": "hot"}
        return point.value

    def stats(self) -> EngineStats:
        return msgspec.convert(self.measured.stats(), EngineStats)


@pytest.fixture
def replica() -> Any:
    made = Replica()
    yield made
    made.telemetry.shutdown()


def test_counters_are_there_before_anything_has_happened(replica: Replica) -> None:
    for metric in (metrics.PREEMPTIONS, metrics.EVICTED_BLOCKS, metrics.PREWARMED_TOKENS, metrics.PREFIX_QUERY_TOKENS):
        assert replica.value(metric) == 0


def test_the_hit_ratio_is_absent_without_lookups_and_true_with(replica: Replica) -> None:
    assert replica.value(metrics.PREFIX_HIT_RATIO) is None
    replica.statistics.record(scheduler(queries=200, hits=50, preempted_queries=900), None)
    assert replica.value(metrics.PREFIX_HIT_RATIO) == 0.25
    for _ in range(130):
        replica.clock.advance(1)
        replica.value(metrics.PREFIX_HIT_RATIO)
    assert "prefix_hit_ratio" not in replica.measured.stats()


def test_the_hit_ratio_forgets_after_a_minute(replica: Replica) -> None:
    replica.statistics.record(scheduler(queries=200, hits=0), None)
    for _ in range(61):
        replica.clock.advance(1)
        replica.measured.stats()
    replica.statistics.record(scheduler(queries=100, hits=90), None)
    assert replica.value(metrics.PREFIX_HIT_RATIO) == 0.9


def test_what_is_computed_before_the_replica_serves_is_for_no_request(replica: Replica) -> None:
    """Else a new replica would begin with a minute of misses, which the policy takes for a cache that collapses."""
    replica.statistics.serving = False
    replica.statistics.record(scheduler(queries=900), iteration(prompt=900, computed=900, generated=1))
    for _ in range(2):
        replica.clock.advance(4)
        replica.busy.look(busy=True)
    replica.measured.serves(900)
    replica.clock.advance(4)
    replica.busy.look(busy=False)
    replica.statistics.record(scheduler(queries=100, hits=80), iteration(prompt=100, computed=20))
    assert replica.value(metrics.PREWARMED_TOKENS) == 900
    assert replica.value(metrics.PREFIX_HIT_RATIO) == 0.8
    assert (replica.value(metrics.PREFIX_QUERY_TOKENS), replica.value(metrics.PROMPT_TOKENS)) == (100, 100)
    assert (replica.stats().computed_tokens_per_s, replica.stats().busy_ratio) == (5, 0)


def test_evictions_are_blocks_that_left_for_others_and_no_reset_is_one(replica: Replica) -> None:
    replica.cache.compute([1] * 16)
    replica.ledger.apply(replica.cache.take_batch())
    stored = replica.value(metrics.STORED_BLOCKS)
    assert stored > 0 and replica.value(metrics.CACHED_BLOCKS) == stored
    replica.ledger.apply(EventBatch(1.0, [AllBlocksCleared()]))
    assert (replica.value(metrics.EVICTED_BLOCKS), replica.value(metrics.CACHED_BLOCKS)) == (0, 0)


def test_levels_are_those_of_the_last_load(replica: Replica) -> None:
    replica.load = ReplicaLoad(running_requests=3, waiting_requests=2, queued_prefill_tokens=77, kv_usage_ratio=0.5)
    assert replica.value(metrics.RUNNING_REQUESTS) == 3
    assert replica.value(metrics.WAITING_REQUESTS) == 2
    assert replica.value(metrics.QUEUED_PREFILL_TOKENS) == 77
    assert replica.value(metrics.KV_USAGE) == 0.5


def test_the_policy_gets_rates_of_the_last_seconds(replica: Replica) -> None:
    replica.stats()
    replica.clock.advance(5)
    replica.busy.look(True)
    replica.statistics.record(scheduler(), iteration(preempted=10, prompt=400, computed=100, generated=50))
    stats = replica.stats()
    assert stats.computed_tokens_per_s == 30
    assert stats.preemptions_per_s == 2
    assert stats.busy_ratio == 1
    replica.clock.advance(11)
    replica.busy.look(False)
    later = replica.stats()
    replica.clock.advance(11)
    assert (replica.stats().computed_tokens_per_s, later.prefix_hit_ratio) == (0, None)


def test_the_policy_gets_numbers_only(replica: Replica) -> None:
    replica.statistics.record(scheduler(queries=10, hits=5), None)
    told = replica.measured.stats()
    assert all(type(value) in (int, float) for value in told.values())
    assert set(told) == set(EngineStats.__struct_fields__)
