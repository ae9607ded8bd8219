"""A changed configuration lets answers that have begun come to their own end, and then serves."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import aiohttp
import httpx
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient
from ray.serve.schema import ServeDeploySchema

from tests.integration.client import CHAT, COMPLETIONS, PATH_HEADER, Ask, Reply, completion, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.configs import MODEL
from tests.integration.stack import Stack

REDEPLOY_TIMEOUT_S = 420.0
TOKENS = 400
PAUSE_S = 0.2  # leaves the new replicas some of a small machine's time
ASSUMED_OUTPUT_TOKENS = 600  # of the new configuration: long, so what names no limit has become cold


def deploy(config: dict[str, Any], dashboard_url: str) -> None:
    """What `serve deploy` does with a file."""
    schema = ServeDeploySchema.model_validate(config)
    ServeSubmissionClient(dashboard_url).deploy_applications(schema.model_dump(exclude_unset=True))


class SteadyClient:
    """Sends one request after the other on one path, and keeps every answer that has begun.

    None may begin for a while: nobody listens while the one ingress is replaced.
    """

    def __init__(self, url: str, path: str, stream: bool) -> None:
        self.replies: list[Reply] = []
        self.broken: list[BaseException] = []
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._run(url, completion(TOKENS, path=path, stream=stream)))

    async def _run(self, url: str, body: dict[str, Any]) -> None:
        async with open_session() as session:
            while not self._leave.is_set():
                asking = Ask(session, url, body)
                try:
                    self.replies.append(await asking.task)
                except aiohttp.ClientError as error:
                    if asking.began.is_set():
                        self.broken.append(error)
                await asyncio.sleep(PAUSE_S)

    async def leave(self) -> None:
        self._leave.set()
        await self._task


async def test_answers_that_have_begun_outlive_a_redeploy(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    changed = copy.deepcopy(plumbing.config)
    changed["applications"][0]["args"]["routing"]["assumed_output_tokens"] = ASSUMED_OUTPUT_TOKENS
    url = plumbing.url + COMPLETIONS
    ways = (("hot", True), ("hot", False), ("cold", True))
    clients = [SteadyClient(url, path, stream) for path, stream in ways]
    await asyncio.to_thread(deploy, changed, plumbing_cluster.dashboard_url)
    await asyncio.to_thread(_wait_for_the_new_configuration, plumbing, plumbing_cluster)
    for client in clients:
        await client.leave()
    answered = [reply for client in clients for reply in client.replies if reply.status == 200]
    assert [error for client in clients for error in client.broken] == []
    assert all(reply.complete for reply in answered if reply.streamed)
    assert {reply.json["usage"]["completion_tokens"] for reply in answered if not reply.streamed} == {TOKENS}
    assert len({reply.replica for reply in answered}) > 3, "old and new replicas have answered"
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)


def _wait_for_the_new_configuration(stack: Stack, cluster: Cluster) -> None:
    def path_without_a_limit() -> str | None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stop": ["a", "e", "i"]}
        try:
            headers = httpx.post(stack.url + CHAT, json=body, timeout=120).headers
        except httpx.TransportError:
            return None
        return str(headers.get(PATH_HEADER))

    def renewed() -> bool:
        return [cluster.running_replicas(name) for name in ("HotEngine", "ColdEngine", "Ingress")] == [2, 1, 1]

    eventually(lambda: path_without_a_limit() == "cold", "the new configuration serves", REDEPLOY_TIMEOUT_S)
    eventually(renewed, "all replicas renewed", REDEPLOY_TIMEOUT_S)
