"""What is computed before a replica serves, on a stand-in engine with a prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.config.live import PrewarmConfig
from app.requests import RequestPath
from app.state.board_reports import Prefix
from deployments.board_client import BoardAwayError
from deployments.prewarm import cache_tokens, compute, prewarmed

BLOCK = 16


class FakeEngine:
    """Caches full blocks by salt, as vLLM does.

    Args:
        hangs_at: of so many requests the last one never ends.
        fails: every request does.
    """

    def __init__(
        self, blocks: int = 1000, hangs_at: int | None = None, fails: bool = False, caches: bool = True
    ) -> None:
        cache = SimpleNamespace(
            num_gpu_blocks=blocks,
            block_size=BLOCK,
            effective_attention_block_size=None,
            enable_prefix_caching=caches,
        )
        self.vllm_config = SimpleNamespace(cache_config=cache)
        self.asked: list[tuple[int, str | None, int]] = []
        self._held: set[tuple[str | None, tuple[int, ...]]] = set()
        self._hangs_at, self._fails = hangs_at, fails

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        tokens, salt = tuple(prompt["prompt_token_ids"]), prompt.get("cache_salt")
        self.asked.append((len(tokens), salt, params.max_tokens))
        if self._fails:
            raise RuntimeError("the engine died")
        if len(self.asked) == self._hangs_at:
            await asyncio.Event().wait()
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        cached = max((end for end in ends if end < len(tokens) and (salt, tokens[:end]) in self._held), default=0)
        self._held |= {(salt, tokens[:end]) for end in ends}
        yield SimpleNamespace(num_cached_tokens=cached)


class Board:
    def __init__(self, *prefixes: Prefix, away: bool = False, silent: bool = False) -> None:
        self.prefixes, self.away, self.silent = prefixes, away, silent
        self.asked: list[tuple[RequestPath, int]] = []

    async def hottest(self, engines: RequestPath, max_tokens: int) -> list[Prefix]:
        self.asked.append((engines, max_tokens))
        if self.away:
            raise BoardAwayError("TimeoutError")
        if self.silent:
            await asyncio.Event().wait()
        return list(self.prefixes)


def prefix(length: int, first: int = 0, salt: str | None = None) -> Prefix:
    return Prefix(tuple(range(first, first + length)), salt)


async def warm(engine: FakeEngine, board: Board, **rules: Any) -> int:
    async def find() -> Board:
        return board

    return await prewarmed(engine, RequestPath.HOT, PrewarmConfig(**rules), find)


async def test_the_hottest_are_computed_in_order_with_one_token_each() -> None:
    engine = FakeEngine()
    assert await warm(engine, Board(prefix(64), prefix(100, first=500))) == 164
    assert engine.asked == [(64, None, 1), (100, None, 1)]


async def test_what_an_earlier_prefix_has_computed_does_not_count_again() -> None:
    assert await warm(FakeEngine(), Board(prefix(64), prefix(128))) == 64 + 64


async def test_a_prefix_is_computed_under_its_own_salt_only() -> None:
    engine = FakeEngine()
    assert await warm(engine, Board(prefix(64, salt="ours"), prefix(64, salt="theirs"))) == 128
    assert [salt for _, salt, _ in engine.asked] == ["ours", "theirs"]


async def test_no_more_is_asked_for_than_the_budget_and_half_of_the_cache() -> None:
    small, large = Board(), Board()
    await warm(FakeEngine(blocks=100), small, budget_tokens=5000)
    await warm(FakeEngine(blocks=1000), large, budget_tokens=5000)
    assert (small.asked, large.asked) == ([(RequestPath.HOT, 800)], [(RequestPath.HOT, 5000)])
    assert cache_tokens(FakeEngine(blocks=100)) == 1600


async def test_the_time_budget_ends_it_with_what_is_done() -> None:
    engine = FakeEngine(hangs_at=2)
    assert await warm(engine, Board(prefix(64), prefix(64, first=500), prefix(64, first=900)), budget_s=0.05) == 64
    assert len(engine.asked) == 2


@pytest.mark.parametrize("board", [Board(), Board(away=True), Board(silent=True)], ids=["empty", "away", "silent"])
async def test_without_a_board_a_replica_starts_cold(board: Board) -> None:
    engine = FakeEngine()
    assert await warm(engine, board, budget_s=0.05) == 0
    assert not engine.asked


async def test_an_application_without_a_board_starts_too() -> None:
    async def find() -> Board:
        raise KeyError("no such deployment")

    assert await prewarmed(FakeEngine(), RequestPath.COLD, PrewarmConfig(), find) == 0


async def test_an_engine_that_fails_is_left_to_its_health_checks() -> None:
    assert await compute(FakeEngine(fails=True), [prefix(64)], 1.0) == 0


@pytest.mark.parametrize(("enabled", "caches"), [(False, True), (True, False)])
async def test_nothing_is_asked_for_where_it_would_be_in_vain(enabled: bool, caches: bool) -> None:
    board = Board(prefix(64))
    assert await warm(FakeEngine(caches=caches), board, enabled=enabled) == 0
    assert not board.asked
