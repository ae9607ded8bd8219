"""Few slots, a short line, keys with quotas: what clients see when more is asked than can be served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.client import COMPLETIONS, Ask, Reply, completion, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.configs import KEYS, TIGHT_QUEUE, TIGHT_SLOTS
from tests.integration.routing import EXPLAIN
from tests.integration.stack import Stack

HEADERS = {name: {"authorization": f"Bearer {key}"} for name, key in KEYS.items()}


@pytest.fixture
def owner(tight: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tight.url, timeout=120, headers=HEADERS["owner"]) as client:
        yield client


def told(client: httpx.Client) -> Any:
    return client.post(EXPLAIN, json=completion(4)).json()


def nothing_held(client: httpx.Client) -> bool:
    states = told(client)["engines"].values()
    return all((state["used_slots"], state["waiting"], state["lent"]) == (0, 0, {}) for state in states)


def refusals(client: httpx.Client) -> int:
    return sum(int(each["count"]) for each in told(client)["refusals"])


def ask(session: Any, stack: Stack, **given: Any) -> Ask:
    headers = HEADERS["owner"] | given.pop("headers", {})
    return Ask(session, stack.url + COMPLETIONS, completion(given.pop("max_tokens", 200), **given), headers)


async def test_three_times_what_fits_is_answered_or_refused_and_nothing_accepted_is_lost(
    tight: Stack, tight_cluster: Cluster, owner: httpx.Client
) -> None:
    before = refusals(owner)
    count = 3 * (TIGHT_SLOTS + TIGHT_QUEUE)
    async with open_session() as session:
        asks = [ask(session, tight, path="cold", stream=True) for _ in range(count)]
        replies: list[Reply] = await asyncio.gather(*(asked.task for asked in asks))
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) == {200, 429}
    assert statuses[200] >= TIGHT_SLOTS + TIGHT_QUEUE
    for reply in replies:
        if reply.status == 200:
            assert reply.complete
        else:
            assert reply.json["error"]["code"] == reply.headers["x-kvpulse-admission"] == "queue_full"
            assert int(reply.headers["retry-after"]) >= 1
    assert refusals(owner) - before == statuses[429]
    assert any(int(reply.headers["x-kvpulse-waited-ms"]) > 0 for reply in replies if reply.status == 200)
    await asyncio.to_thread(eventually, lambda: nothing_held(owner), "nothing held")
    await asyncio.to_thread(tight_cluster.wait_until_idle)


async def test_hot_requests_start_at_once_while_cold_ones_wait(tight: Stack, owner: httpx.Client) -> None:
    async with open_session() as session:
        cold = [ask(session, tight, path="cold", max_tokens=1500, stream=True) for _ in range(TIGHT_SLOTS + 4)]
        await asyncio.gather(*(asked.began.wait() for asked in cold[:TIGHT_SLOTS]))
        hot = await ask(session, tight, path="hot", max_tokens=4).task
        assert (hot.status, hot.headers["x-kvpulse-waited-ms"]) == (200, "0")
        replies = await asyncio.gather(*(asked.task for asked in cold))
    assert all(reply.complete for reply in replies)


async def test_who_leaves_the_line_and_who_runs_out_of_time_hold_nothing(tight: Stack, owner: httpx.Client) -> None:
    async with open_session() as session:
        running = [ask(session, tight, path="cold", max_tokens=3000, stream=True) for _ in range(TIGHT_SLOTS)]
        await asyncio.gather(*(asked.began.wait() for asked in running))
        leaving = [ask(session, tight, path="cold") for _ in range(6)]
        await asyncio.to_thread(eventually, lambda: told(owner)["engines"]["cold"]["waiting"] == 6, "six wait")
        late = await ask(session, tight, path="cold", headers={"x-request-timeout-seconds": "1"}).task
        for asked in leaving:
            asked.task.cancel()
        assert (late.status, late.json["error"]["code"]) == (408, "deadline_passed")
        await asyncio.to_thread(eventually, lambda: told(owner)["engines"]["cold"]["waiting"] == 0, "nobody waits")
        for asked in running:
            asked.task.cancel()
        await asyncio.gather(*(asked.task for asked in running + leaving), return_exceptions=True)
    await asyncio.to_thread(eventually, lambda: nothing_held(owner), "nothing held")


async def test_a_key_that_asks_for_too_much_at_once_is_told_what_it_has(tight: Stack) -> None:
    async with open_session() as session:
        asks = [Ask(session, tight.url + COMPLETIONS, completion(300), HEADERS["guest"]) for _ in range(6)]
        replies = await asyncio.gather(*(asked.task for asked in asks))
    refused = [reply for reply in replies if reply.status == 429]
    assert len(refused) >= 3
    for reply in refused:
        assert reply.json["error"]["code"] in ("concurrent_requests", "tokens_per_minute")
        assert "x-ratelimit-remaining-tokens" in reply.headers and int(reply.headers["retry-after"]) >= 1
