"""The events of the live page: framing, what a page missed, one poll for all, bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.errors import UnavailableError
from deployments.live_feed import MOST_QUEUED, LiveFeed, event
from tests.fakes import until
from tests.live_page_rig import ScriptedBoard, collected


class CountingBoard(ScriptedBoard):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str | None] = []

    async def update(self, after: str | None) -> tuple[str, bytes]:
        self.asked.append(after)
        return await super().update(after)


def feed(board: ScriptedBoard, listeners: int = 8, **times: float) -> LiveFeed:
    return LiveFeed(board.update, {"model": "m"}, listeners, **{"poll_s": 0.01, **times})


def parsed(block: bytes) -> dict[str, Any]:
    lines = block.decode().removesuffix("\n\n").split("\n")
    fields = dict(line.split(": ", 1) for line in lines)
    return {**fields, "data": json.loads(fields["data"])} if "data" in fields else fields


def test_an_event_has_a_name_an_id_and_one_line_of_data() -> None:
    assert event(b'{"a":1}', event_id="x-1") == b'event: pulse\nid: x-1\ndata: {"a":1}\n\n'
    assert event(b"{}", "away") == b"event: away\ndata: {}\n\n"


async def test_a_page_gets_its_settings_then_everything_then_one_second_after_the_other() -> None:
    board = ScriptedBoard()
    for _ in range(3):
        board.second()
    stream = feed(board).listen(None)
    settings, whole = await anext(stream), parsed(await anext(stream))
    assert parsed(settings)["data"] == {"model": "m"}
    assert (whole["event"], whole["id"], len(whole["data"]["samples"])) == ("pulse", "first-3", 3)
    board.second()
    following = [parsed(block) for block in await collected(stream, 2)]
    assert [len(each["data"]["samples"]) for each in following] == [1, 0]
    assert following[0]["id"] == "first-4"


async def test_a_page_that_comes_back_gets_what_it_has_missed() -> None:
    board = ScriptedBoard()
    for _ in range(5):
        board.second()
    _, missed = await collected(feed(board).listen("first-3"), 2)
    assert (len(parsed(missed)["data"]["samples"]), parsed(missed)["data"]["whole"]) == (2, False)


async def test_pages_share_one_poll_and_without_pages_there_is_none() -> None:
    board = CountingBoard()
    board.second()
    shared = feed(board)
    streams = [shared.listen(None) for _ in range(5)]
    tasks = [asyncio.create_task(collected(stream, 6)) for stream in streams]
    await asyncio.gather(*tasks)
    assert shared.listeners == 0
    polls = len(board.asked) - len(streams)  # each page asked once for what it had missed
    assert 4 <= polls <= 6
    await until(lambda: shared._polling is None)


async def test_an_away_board_is_told_as_such_and_its_return_too() -> None:
    board = ScriptedBoard()
    board.second()
    stream = feed(board).listen(None)
    await anext(stream)
    await anext(stream)
    board.away = True
    assert parsed(await anext(stream))["event"] == "away"
    board.away = False
    while (told := parsed(await anext(stream)))["event"] == "away":
        pass
    assert told["event"] == "pulse"
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_a_stream_says_something_even_when_there_is_nothing_to_say() -> None:
    board = ScriptedBoard()
    blocks = await collected(feed(board, poll_s=60, heartbeat_s=0.01).listen(None), 4)
    assert blocks[-1] == b": alive\n\n"


async def test_a_stream_ends_in_its_time_so_that_an_ingress_can_stop() -> None:
    told = [block async for block in feed(ScriptedBoard(), stream_s=0.05).listen(None)]
    assert len(told) >= 2


async def test_too_many_pages_are_refused() -> None:
    crowded = feed(ScriptedBoard(), listeners=1)
    stream = crowded.listen(None)
    await anext(stream)
    with pytest.raises(UnavailableError, match="max_listeners"):
        crowded.listen(None)
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator
    assert crowded.listeners == 0


async def test_a_page_that_reads_slowly_is_dropped_and_costs_no_memory() -> None:
    board = ScriptedBoard()
    slow = feed(board)
    stream = slow.listen(None)
    await anext(stream)
    await anext(stream)
    await until(lambda: slow.listeners == 0)
    assert len([block async for block in stream]) == MOST_QUEUED


async def test_a_page_that_takes_longer_than_a_heartbeat_to_read_is_not_cancelled() -> None:
    board = ScriptedBoard()
    read = 0
    async for _ in feed(board, poll_s=0.01, heartbeat_s=0.02, stream_s=0.2).listen(None):
        await asyncio.sleep(0.05)
        read += 1
    assert read > 2


async def test_closing_ends_all_streams() -> None:
    open_feed = feed(ScriptedBoard(), poll_s=60)
    stream = open_feed.listen(None)
    await anext(stream)
    await anext(stream)
    open_feed.close()
    assert [block async for block in stream] == [b": closing\n\n"]
