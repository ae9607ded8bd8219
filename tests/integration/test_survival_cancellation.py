"""Clients that go away leave nothing running, whenever they go."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from tests.integration.client import COMPLETIONS, Ask, completion, open_session
from tests.integration.cluster import Cluster
from tests.integration.stack import Stack

REQUESTS = 150
AT_ONCE = 15
LONG_TOKENS = 4000  # more than a second of the tiny model's work
LONG_PROMPT = [9] * 4000


async def leave_after(session: aiohttp.ClientSession, url: str, body: dict[str, Any], patience_s: float) -> bool:
    """Whether the client left before the answer was complete."""
    asking = Ask(session, url, body)
    done, _ = await asyncio.wait([asking.task], timeout=patience_s)
    asking.task.cancel()
    await asyncio.wait([asking.task])
    return not done


async def test_requests_cancelled_at_any_moment_leave_nothing_running(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    chance = random.Random(20)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession) -> bool:
        prompt = chance.choice(["Once upon a time", LONG_PROMPT])
        path, stream = chance.choice(["hot", "cold"]), chance.random() < 0.5
        body = completion(LONG_TOKENS, path=path, stream=stream, prompt=prompt)
        patience_s = chance.choice([0.005, 0.02, 0.1, 0.5]) * chance.random()
        async with gate:
            return await leave_after(session, plumbing.url + COMPLETIONS, body, patience_s)

    async with open_session() as session:
        left = await asyncio.gather(*(one(session) for _ in range(REQUESTS)))
        assert sum(left) > REQUESTS * 0.9, "the answers were too short for this test"
        await asyncio.to_thread(plumbing_cluster.wait_until_idle)
        reply = await Ask(session, plumbing.url + COMPLETIONS, completion(5)).task
    assert reply.json["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("path", ["hot", "cold"])
async def test_leaving_after_the_first_token_ends_the_stream(
    plumbing: Stack, plumbing_cluster: Cluster, path: str
) -> None:
    async with open_session() as session:
        asking = Ask(session, plumbing.url + COMPLETIONS, completion(LONG_TOKENS, path=path, stream=True))
        await asking.began.wait()
        asking.task.cancel()
        await asyncio.wait([asking.task])
        await asyncio.to_thread(plumbing_cluster.wait_until_idle)


async def test_a_cancelled_request_leaves_its_neighbours_alone(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    async with open_session() as session:
        url = plumbing.url + COMPLETIONS
        staying = [Ask(session, url, completion(800, path="hot", stream=True)) for _ in range(4)]
        leaving = [Ask(session, url, completion(LONG_TOKENS, path="hot", stream=True)) for _ in range(4)]
        await asyncio.gather(*(asking.began.wait() for asking in staying + leaving))
        for asking in leaving:
            asking.task.cancel()
        replies = [await asking.task for asking in staying]
    assert all(reply.complete for reply in replies)
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)
