"""Calls to the board end in time, and their failures are one error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.requests import RequestPath
from app.state.board_reports import Prefix
from deployments.board_client import BoardAwayError, BoardClient


class Response:
    """What a handle's call gives: awaitable, and to be cancelled by whoever gives up."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.cancelled = False

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        if self._answer is None:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    def __init__(self, answer: Any) -> None:
        self.response = Response(answer)
        self.called: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *arguments: Any) -> Response:
        self.called.append(arguments)
        return self.response


async def test_an_answer_is_handed_on() -> None:
    handle = Handle([Prefix((1, 2))])
    assert await BoardClient(handle).hottest(RequestPath.HOT, 100) == [Prefix((1, 2))]
    assert handle.called == [(RequestPath.HOT, 100)]


@pytest.mark.parametrize("answer", [None, RuntimeError("no replica")], ids=["silent", "failing"])
async def test_a_board_that_is_away_is_given_up(answer: Any) -> None:
    handle = Handle(answer)
    with pytest.raises(BoardAwayError):
        await BoardClient(handle, timeout_s=0.01).update(None)
    assert handle.response.cancelled


async def test_whoever_stops_waiting_leaves_no_call_behind() -> None:
    handle = Handle(None)
    call = asyncio.create_task(BoardClient(handle).update(None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert handle.response.cancelled
