"""What is kept of vLLM's own statistics, built by vLLM's own classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.step_statistics import StepStatistics
from tests.fake_steps import finished, iteration, scheduler


def recorded(*steps: tuple[Any, Any]) -> StepStatistics:
    statistics = StepStatistics("hot")
    for scheduled, iterated in steps:
        statistics.record(scheduled, iterated)
    return statistics


def test_counts_add_up_over_steps() -> None:
    step = (scheduler(queries=100, hits=32), iteration(prompt=100, computed=68, generated=3))
    counts = recorded(step, step, (None, iteration(generated=1))).counts
    assert (counts.prompt, counts.computed, counts.generated) == (200, 136, 7)
    assert (counts.queried, counts.hit) == (200, 64)


def test_lookups_after_a_preemption_are_no_lookups() -> None:
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats

    lookups = PrefixCacheStats()
    lookups.record(num_tokens=100, num_hits=32, preempted=False)
    lookups.record(num_tokens=900, num_hits=896, preempted=True)
    counts = recorded((SchedulerStats(prefix_cache_stats=lookups), None)).counts
    assert (counts.queried, counts.hit) == (100, 32)


def test_the_times_of_a_request_are_vllms_own() -> None:
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats

    step = IterationStats()
    times = RequestStateStats(
        num_generation_tokens=5, queued_ts=10.0, scheduled_ts=10.5, first_token_ts=12.5, last_token_ts=13.0
    )
    step.update_from_finished_request(FinishReason.STOP, "a", 100, None, times)
    statistics = recorded((SchedulerStats(), step))
    assert statistics._prefill.read()[("hot",)].total == pytest.approx(2.0)
    assert statistics._queued.read()[("hot",)].total == pytest.approx(0.5)


def test_a_request_without_a_first_token_has_no_prefill_time() -> None:
    step = iteration(finished=(finished(-12.0, 0.1, generated=0), finished(1.0, 0.2)))
    statistics = recorded((None, step))
    assert statistics._prefill.read()[("hot",)].count == statistics._queued.read()[("hot",)].count == 1


def test_every_gap_between_two_tokens_counts() -> None:
    statistics = recorded((None, iteration(itl=(0.002, 0.02))), (None, iteration(itl=(0.2,))))
    assert statistics._itl.read()[("hot",)].count == 3


def test_it_is_the_stat_logger_that_vllm_makes_from_it() -> None:
    statistics = StepStatistics("hot")
    assert statistics(SimpleNamespace(), 0) is statistics
    statistics.log_engine_initialized()
    statistics.log()
