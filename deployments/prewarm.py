"""A new engine replica computes the hottest prefixes of its path before it takes traffic."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from app.config.live import PrewarmConfig
from app.requests import RequestPath
from app.state.board_reports import Prefix
from deployments.board_client import BoardAwayError, BoardClient

logger = logging.getLogger("ray.serve")

BOARD_DEPLOYMENT = "PulseBoard"


class Board(Protocol):
    """Who knows what is hot."""

    async def hottest(self, engines: RequestPath, max_tokens: int) -> Sequence[Prefix]:
        """Raises BoardAwayError."""


async def this_board() -> BoardClient:
    """That of the application which this replica belongs to. It is found by its name: it is bound to the engines'
    handles, so it cannot be bound to the engines themselves.
    """
    from ray import serve

    application = serve.get_replica_context().app_name
    return BoardClient(await asyncio.to_thread(serve.get_deployment_handle, BOARD_DEPLOYMENT, application))


async def prewarmed(
    engine: Any, path: RequestPath, rules: PrewarmConfig, find_board: Callable[[], Awaitable[Board]] = this_board
) -> int:
    """Ask the board what is hot, and compute it. Returns the tokens computed; never raises, never takes long.

    At the very first start the board may not be there yet, and knows nothing if it is.
    """
    if not rules.enabled or not engine.vllm_config.cache_config.enable_prefix_caching:
        return 0
    began = time.monotonic()
    try:
        async with asyncio.timeout(rules.budget_s):
            limit = min(rules.budget_tokens, cache_tokens(engine) // 2)
            prefixes = await (await find_board()).hottest(path, limit)
    except (BoardAwayError, TimeoutError):
        prefixes = []
    except Exception as error:  # a cold replica is a replica all the same
        logger.warning("%s: not pre-warmed: %s", path, type(error).__name__)
        prefixes = []
    tokens = await compute(engine, prefixes, began + rules.budget_s - time.monotonic())
    logger.info(
        "%s: pre-warmed %d tokens of %d prefixes in %.1f s", path, tokens, len(prefixes), time.monotonic() - began
    )
    return tokens


async def compute(engine: Any, prefixes: Sequence[Prefix], budget_s: float) -> int:
    """Have the engine compute the prefixes, in order, until the time is up.

    Returns:
        Prompt tokens that it computed; what it had already from a prefix before is not among them.
    """
    computed = 0
    try:
        async with asyncio.timeout(budget_s):
            for prefix in prefixes:
                computed += await _compute(engine, prefix)
    except TimeoutError:
        pass
    except Exception as error:  # a cold replica is a replica all the same, unless its engine died: health checks tell
        logger.warning("pre-warming ended early: %s", type(error).__name__)
    return computed


async def _compute(engine: Any, prefix: Prefix) -> int:
    from vllm import SamplingParams

    prompt: dict[str, Any] = {"prompt_token_ids": list(prefix.tokens)}
    if prefix.cache_salt is not None:  # without it another tenant would hit what this one has sent
        prompt["cache_salt"] = prefix.cache_salt
    params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    cached = 0
    async for output in engine.generate(prompt, params, f"prewarm-{uuid.uuid4().hex}"):
        cached = output.num_cached_tokens or 0
    return len(prefix.tokens) - cached


def cache_tokens(engine: Any) -> int:
    """That fit into the engine's KV cache."""
    cache = engine.vllm_config.cache_config
    return int(cache.num_gpu_blocks or 0) * int(cache.effective_attention_block_size or cache.block_size)
