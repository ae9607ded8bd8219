"""The live block tables of an engine, measured in its own process: vLLM tells nothing of them.

The engine process imports this module because its scheduler is named by the path of a class in it. Nothing of the
scheduler is changed; a method of the engine, called from outside between two of its steps, looks at the tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec

from app import metrics
from app.state.block_tables import BlockTables, measure
from app.state.tallies import Labels
from deployments.telemetry import Reading, Telemetry

logger = logging.getLogger("ray.serve")

UTILITY = "kvpulse_block_tables"


class MeasuredScheduler(Scheduler):
    """vLLM's scheduler for steps that wait for each other."""


class MeasuredAsyncScheduler(AsyncScheduler):
    """vLLM's scheduler for steps that are scheduled ahead."""


_MEASURED: dict[type, type] = {Scheduler: MeasuredScheduler, AsyncScheduler: MeasuredAsyncScheduler}


def make_measurable(config: VllmConfig) -> None:
    """Have the engine of this configuration import this module, unless its scheduler is somebody else's."""
    measured = _MEASURED.get(config.scheduler_config.get_scheduler_cls())
    if measured is not None:
        config.scheduler_config.scheduler_cls = f"{measured.__module__}.{measured.__qualname__}"


def is_measurable(config: VllmConfig) -> bool:
    return config.scheduler_config.get_scheduler_cls() in _MEASURED.values()


def _block_tables(core: Any) -> list[int]:
    """Runs in the engine process. Of the first group of layers that keep the whole context, what routing follows too;
    nothing where there is none.
    """
    scheduler = core.scheduler
    groups = scheduler.kv_cache_manager.coordinator.single_type_managers
    group = next((group for group in groups if isinstance(group.kv_cache_spec, FullAttentionSpec)), None)
    if group is None:
        return []
    row_entries = ceil(scheduler.max_model_len / group.block_size)
    tables = measure(_tables(scheduler.running, group), group.block_size, row_entries)
    return [tables.entries, tables.room, tables.blocks, tables.block_size, tables.empty_slots]


def _tables(running: list[Any], group: Any) -> Iterator[tuple[list[int], int]]:
    for request in running:
        blocks = group.req_to_blocks.get(request.request_id, ())
        yield [0 if block.is_null else block.block_id for block in blocks], request.num_computed_tokens


setattr(EngineCore, UTILITY, _block_tables)


class BlockTableWatch:
    """Asks the engine now and then, while it runs something.

    Args:
        engine: its client, `AsyncLLM`.
        running: whether there is anything to look at.
    """

    def __init__(self, telemetry: Telemetry, engines: str, engine: Any, running: Callable[[], bool]) -> None:
        self._labels: Labels = (engines,)
        self._engine = engine
        self._running = running
        self._seen: BlockTables | None = None
        telemetry.observe(metrics.BLOCK_TABLE_SPARSITY, self._reading(lambda seen: seen.sparsity_ratio))
        telemetry.observe(metrics.INTERNAL_FRAGMENTATION, self._reading(lambda seen: seen.fragmentation_ratio))
        telemetry.observe(metrics.BLOCK_SHARING, self._reading(lambda seen: seen.sharing_ratio))

    async def run(self, period_s: float) -> None:
        """For ever, or until the engine fails to answer: its replica is then about to be replaced."""
        while True:
            await asyncio.sleep(period_s)
            try:
                self._seen = await self._look() if self._running() else None
            except Exception:
                self._seen = None
                logger.exception("the engine did not tell of its block tables")
                return

    async def _look(self) -> BlockTables | None:
        told = await self._engine.engine_core.call_utility_async(UTILITY)
        return BlockTables(*told) if told else None

    def _reading(self, ratio: Callable[[BlockTables], float | None]) -> Reading:
        def values() -> dict[Labels, float]:
            value = None if self._seen is None else ratio(self._seen)
            return {} if value is None else {self._labels: value}

        return values
