"""Real engines come and go with the load, and no client notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from app.requests import RequestPath
from deployments.application_secret import RayStore
from deployments.scaling_report import last_decisions
from tests.integration import configs
from tests.integration.client import COMPLETIONS, Reply, completion, open_session
from tests.integration.cluster import APPLICATION, Cluster, eventually
from tests.integration.conftest import Stacks
from tests.integration.stack import Stack

TOKENS = 400
CROWD = 24
SCALE_TIMEOUT_S = 300.0  # a start of vLLM on a busy machine


@pytest.fixture(scope="module")
def scaled(stacks: Stacks, tiny_model: str) -> Stack:
    return stacks.use("scaled", lambda: configs.scaled(tiny_model))


@pytest.fixture(scope="module")
def cluster(scaled: Stack) -> Iterator[Cluster]:
    connected = Cluster(scaled)
    yield connected
    connected.close()


class Crowd:
    """Clients who ask again as soon as they are answered, and keep what they got."""

    def __init__(self, url: str, clients: int) -> None:
        self.replies: list[Reply] = []
        self._leave = asyncio.Event()
        self._tasks = [asyncio.create_task(self._client(url)) for _ in range(clients)]

    async def _client(self, url: str) -> None:
        async with open_session() as session:
            while not self._leave.is_set():
                async with session.post(url, json=completion(TOKENS, path="hot", stream=True)) as response:
                    self.replies.append(Reply(response.status, response.headers, await response.read()))

    async def leave(self) -> list[Reply]:
        self._leave.set()
        await asyncio.gather(*self._tasks)
        return self.replies


async def test_hot_goes_from_one_to_two_and_back_while_every_stream_comes_to_its_own_end(
    scaled: Stack, cluster: Cluster
) -> None:
    def hot(wanted: int) -> Any:
        return asyncio.to_thread(
            eventually, lambda: cluster.running_replicas("HotEngine") == wanted, f"{wanted} hot", SCALE_TIMEOUT_S
        )

    await hot(1)
    crowd = Crowd(scaled.url + COMPLETIONS, CROWD)
    await hot(2)
    before = len(crowd.replies)
    both = await asyncio.to_thread(eventually, lambda: _replicas(crowd.replies[before:]) == 2, "both answer", 60)
    assert both
    answered = await crowd.leave()
    one = Crowd(scaled.url + COMPLETIONS, 1)  # somebody is always being answered while a replica leaves
    await hot(1)
    answered += await one.leave()
    assert {reply.status for reply in answered} == {200}
    assert all(reply.complete for reply in answered)
    assert {reply.chunks[-1]["choices"][0]["finish_reason"] for reply in answered} == {"length"}
    await asyncio.to_thread(cluster.wait_until_idle)
    assert last_decisions(APPLICATION, RayStore())[RequestPath.HOT].desired_replicas == 1


def _replicas(replies: list[Reply]) -> int:
    return len({reply.replica for reply in replies})
