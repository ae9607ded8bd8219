"""What is kept of vLLM's own statistics, built by vLLM's own classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.state.tallies import Distribution, Spread
from deployments.step_statistics import StepCounts, StepStatistics
from tests.fake_steps import finished, iteration, scheduler


class Recorded:
    """A stat logger after some steps."""

    def __init__(self, *steps: tuple[Any, Any]) -> None:
        self.itl, self.prefill, self.queued = (Distribution((1.0,), ("hot",)) for _ in range(3))
        self.statistics = StepStatistics("hot", self.itl, self.prefill, self.queued)
        for scheduled, iterated in steps:
            self.statistics.record(scheduled, iterated)

    @property
    def counts(self) -> StepCounts:
        return self.statistics.counts


def seen(distribution: Distribution) -> Spread:
    return distribution.read()[("hot",)]


def test_counts_add_up_over_steps() -> None:
    step = (scheduler(queries=100, hits=32), iteration(prompt=100, computed=68, generated=3))
    counts = Recorded(step, step, (None, iteration(generated=1))).counts
    assert (counts.prompt, counts.computed, counts.generated) == (200, 136, 7)
    assert (counts.queried, counts.hit) == (200, 64)


def test_lookups_after_a_preemption_are_no_lookups() -> None:
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats

    lookups = PrefixCacheStats()
    lookups.record(num_tokens=100, num_hits=32, preempted=False)
    lookups.record(num_tokens=900, num_hits=896, preempted=True)
    counts = Recorded((SchedulerStats(prefix_cache_stats=lookups), None)).counts
    assert (counts.queried, counts.hit) == (100, 32)


def test_the_times_of_a_request_are_vllms_own() -> None:
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats

    step = IterationStats()
    times = RequestStateStats(
        num_generation_tokens=5, queued_ts=10.0, scheduled_ts=10.5, first_token_ts=12.5, last_token_ts=13.0
    )
    step.update_from_finished_request(FinishReason.STOP, "a", 100, None, times)
    told = Recorded((SchedulerStats(), step))
    assert seen(told.prefill).total == pytest.approx(2.0)
    assert seen(told.queued).total == pytest.approx(0.5)


def test_a_request_without_a_first_token_has_no_prefill_time() -> None:
    step = iteration(finished=(finished(-12.0, 0.1, generated=0), finished(1.0, 0.2)))
    told = Recorded((None, step))
    assert seen(told.prefill).count == seen(told.queued).count == 1


def test_every_gap_between_two_tokens_counts() -> None:
    told = Recorded((None, iteration(itl=(0.002, 0.02))), (None, iteration(itl=(0.2,))))
    assert seen(told.itl).count == 3


def test_it_is_the_stat_logger_that_vllm_makes_from_it() -> None:
    statistics = StepStatistics("hot")
    assert statistics(SimpleNamespace(), 0) is statistics
    statistics.log_engine_initialized()
    statistics.log()
