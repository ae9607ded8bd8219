"""vLLM's own block pool and managers, looked at as in the engine process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opentelemetry.sdk.resources import Resource
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec

from app import metrics
from app.state.block_tables import BlockTables
from deployments.block_tables import (
    UTILITY,
    BlockTableWatch,
    MeasuredAsyncScheduler,
    MeasuredScheduler,
    is_measurable,
    make_measurable,
)
from deployments.telemetry import Telemetry
from tests.kept_metrics import Kept


def config_of(scheduler: Any) -> Any:
    from vllm.config import SchedulerConfig

    made = SchedulerConfig.default_factory(max_num_batched_tokens=8192)
    made.scheduler_cls = scheduler
    return SimpleNamespace(scheduler_config=made)


@pytest.mark.parametrize(("asynchronous", "measured"), [(True, MeasuredAsyncScheduler), (False, MeasuredScheduler)])
def test_the_scheduler_stays_of_the_kind_that_vllm_chose(asynchronous: bool, measured: type) -> None:
    config = config_of(None)
    config.scheduler_config.async_scheduling = asynchronous
    base = config.scheduler_config.get_scheduler_cls()
    make_measurable(config)
    chosen = config.scheduler_config.get_scheduler_cls()
    assert chosen is measured and issubclass(chosen, base) and is_measurable(config)
    assert base is (AsyncScheduler if asynchronous else Scheduler)


def test_somebody_elses_scheduler_is_left_alone() -> None:
    class Theirs(Scheduler): ...

    config = config_of(Theirs)
    make_measurable(config)
    assert config.scheduler_config.get_scheduler_cls() is Theirs and not is_measurable(config)


def test_nothing_of_scheduling_is_overridden() -> None:
    for measured in (MeasuredScheduler, MeasuredAsyncScheduler):
        assert not [name for name in vars(measured) if callable(getattr(measured, name)) and not name.startswith("__")]


class FakeCore:
    """An engine core whose scheduler runs sequences on vLLM's own pool of 20 blocks of 16 tokens."""

    def __init__(self) -> None:
        spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.bfloat16)
        self.pool = BlockPool(20, enable_caching=True, hash_block_size=16)
        self.group = FullAttentionManager(
            spec, block_pool=self.pool, enable_caching=True, kv_cache_group_id=0, scheduler_block_size=16
        )
        coordinator = SimpleNamespace(single_type_managers=(self.group,))
        self.scheduler = SimpleNamespace(
            running=[], kv_cache_manager=SimpleNamespace(coordinator=coordinator), max_model_len=100
        )

    def run(self, name: str, tokens: int, shares: str | None = None, blocks: int = 0) -> None:
        shared = self.group.req_to_blocks[shares][:blocks] if shares else []
        self.pool.touch(shared)
        need = -(-tokens // 16) - len(shared)
        self.group.req_to_blocks[name] = [*shared, *self.pool.get_new_blocks(need)]
        self.scheduler.running.append(SimpleNamespace(request_id=name, num_computed_tokens=tokens))


def test_tables_on_vllms_own_pool_are_counted() -> None:
    core = FakeCore()
    core.run("a", 40)
    core.run("b", 64, shares="a", blocks=2)
    told = BlockTables(*getattr(EngineCore, UTILITY)(core))
    assert told == BlockTables(entries=7, room=2 * 7, blocks=5, block_size=16, empty_slots=8)


def test_an_engine_without_whole_context_layers_tells_nothing() -> None:
    core = FakeCore()
    core.scheduler.kv_cache_manager.coordinator.single_type_managers = ()
    assert getattr(EngineCore, UTILITY)(core) == []


class FakeEngine:
    def __init__(self, *answers: Any) -> None:
        self.engine_core = self
        self.asked: list[str] = []
        self._answers = list(answers)

    async def call_utility_async(self, method: str) -> Any:
        self.asked.append(method)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_tables_are_told_while_something_runs_and_the_engine_answers() -> None:
    kept, running = Kept(), [True, False, True]
    telemetry = Telemetry(Resource.get_empty(), [(kept, 3600.0)])
    telemetry.tally(metrics.PROMPT_TOKENS, ("hot",))
    engine = FakeEngine([7, 14, 5, 16, 8], RuntimeError("dead"))
    told: list[bool] = []

    def look() -> bool:
        telemetry.flush()
        told.append(metrics.BLOCK_TABLE_SPARSITY.name in kept.metrics)
        return running.pop(0)

    await BlockTableWatch(telemetry, "hot", engine, look).run(0.0)
    telemetry.shutdown()
    assert engine.asked == [UTILITY] * 2, "an engine that fails to answer is asked no more"
    assert told == [False, True, False]
    assert metrics.BLOCK_TABLE_SPARSITY.name not in kept.metrics
