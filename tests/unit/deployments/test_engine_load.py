"""The load is what the frontend's table says, and the engine's statistics count only while it has requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.state.block_ledger import BlockLedger
from app.state.lately import BusyTime
from app.state.prefill_progress import PrefillProgress
from app.state.pulse import ReplicaLoad
from deployments.engine_load import EngineLoad
from deployments.sequences import follow_sequences
from deployments.step_statistics import StepStatistics
from tests.fake_engine_cache import HASHER, FakeEngineCache
from tests.fake_steps import iteration, scheduler
from tests.fakes import FakeClock


class FakeOutputProcessor:
    """vLLM's table of requests, as far as the load reads it."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: str | None = None) -> None:
        self.request_states[request.request_id] = SimpleNamespace(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            prompt_len=len(request.prompt_token_ids or [0] * 7),
            is_prefilling=True,
            lora_name=None,
            stats=SimpleNamespace(num_generation_tokens=0),
        )

    def first_token(self, request_id: str, generated: int = 1) -> None:
        self.request_states[request_id].is_prefilling = False
        self.request_states[request_id].stats.num_generation_tokens = generated


class Engine:
    def __init__(self) -> None:
        self.processor = FakeOutputProcessor()
        follow_sequences(self.processor)
        self.cache = FakeEngineCache()
        self.ledger = BlockLedger(HASHER, 1000)
        self.statistics = StepStatistics("hot")
        progress = PrefillProgress(self.ledger)
        self.clock = FakeClock()
        self.busy = BusyTime(self.clock)
        self.load = EngineLoad(self.processor.request_states, self.statistics, progress, kv_blocks=100, busy=self.busy)

    def add(self, request_id: str, tokens: list[int] | None, cache_salt: str | None = None) -> None:
        request = SimpleNamespace(request_id=request_id, prompt_token_ids=tokens, cache_salt=cache_salt)
        self.processor.add_request(request, prompt=None)

    def step(self, running: int, usage: float, preempted: int = 0, **lookups: int) -> None:
        self.statistics.record(
            scheduler(running, usage, **lookups),
            iteration(preempted=preempted),
            mm_cache_stats=None,
            engine_idx=0,
        )


def test_requests_wait_until_the_engine_runs_them() -> None:
    engine = Engine()
    engine.add("a", [1] * 10)
    assert engine.load() == ReplicaLoad(waiting_requests=1, queued_prefill_tokens=10, kv_blocks=100)
    engine.add("b", [2] * 5)
    engine.step(running=1, usage=0.25)
    load = engine.load()
    assert (load.running_requests, load.waiting_requests, load.queued_prefill_tokens) == (1, 1, 15)
    assert load.kv_usage_ratio == 0.25


def test_a_request_decodes_from_its_first_token_on() -> None:
    engine = Engine()
    engine.add("a", [1] * 10)
    engine.processor.first_token("a", generated=3)
    load = engine.load()
    assert (load.queued_prefill_tokens, load.decode_tokens) == (0, 13)


def test_what_the_cache_holds_is_not_queued_under_the_same_salt_only() -> None:
    engine = Engine()
    engine.cache.compute([1] * 8, salt="ours")
    engine.ledger.apply(engine.cache.take_batch())
    engine.add("a", [1] * 10, cache_salt="ours")
    assert engine.load().queued_prefill_tokens == 2
    engine.add("b", [1] * 10, cache_salt="theirs")
    assert engine.load().queued_prefill_tokens == 2 + 10


def test_after_a_mass_abort_nothing_stays() -> None:
    """The engine does not step any more, so its last statistics stay as they were."""
    engine = Engine()
    for n in range(50):
        engine.add(str(n), [n] * 10)
    engine.step(running=50, usage=0.99)
    engine.processor.request_states.clear()
    assert engine.load() == ReplicaLoad(kv_blocks=100)


def test_no_more_run_than_there_are() -> None:
    engine = Engine()
    engine.add("a", [1] * 10)
    engine.step(running=50, usage=0.99)
    load = engine.load()
    assert (load.running_requests, load.waiting_requests) == (1, 0)


def test_a_prompt_of_embeddings_counts_whole() -> None:
    engine = Engine()
    engine.add("a", None)
    assert engine.load().queued_prefill_tokens == 7


def test_preemptions_add_up_over_steps_without_scheduler_statistics_too() -> None:
    engine = Engine()
    engine.step(running=1, usage=0.5, preempted=2)
    engine.statistics.record(None, iteration(preempted=1))
    engine.statistics.record(None, None)
    engine.add("a", [1])
    load = engine.load()
    assert (load.preemptions, load.running_requests, load.kv_usage_ratio) == (3, 1, 0.5)


def test_lookups_add_up_over_steps_and_those_after_a_preemption_do_not_count() -> None:
    engine = Engine()
    engine.step(running=1, usage=0.5, queries=100, hits=60, preempted_queries=500)
    engine.step(running=1, usage=0.5, queries=100, hits=60)
    engine.statistics.record(None, None)
    load = engine.load()
    assert (load.prefix_query_tokens, load.prefix_hit_tokens) == (200, 120)


def test_an_engine_that_caches_nothing_tells_of_no_lookups() -> None:
    engine = Engine()
    stats = scheduler(running=1)
    stats.prefix_cache_stats = None
    engine.statistics.record(stats, iteration())
    assert engine.load().prefix_query_tokens == 0


def test_the_statistics_are_the_stat_logger_that_vllm_makes_from_them() -> None:
    statistics = StepStatistics("hot")
    assert statistics(object(), 0) is statistics
    statistics.log_engine_initialized()
    statistics.log()


def test_the_last_load_is_kept_for_others_and_busy_is_who_has_requests() -> None:
    engine = Engine()
    engine.add("a", [1] * 10)
    engine.clock.advance(2)
    assert engine.load() is engine.load.last
    engine.processor.request_states.clear()
    engine.clock.advance(3)
    engine.load()
    assert (engine.load.last.waiting_requests, engine.busy.total_s) == (0, 2)
