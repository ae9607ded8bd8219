"""`kill -9` under load: what the clients see, what is left running, and that the dead come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import httpx
import psutil
import pytest

from tests.integration.client import COMPLETIONS, Ask, Reply, completion, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.stack import Stack, process_name

RETURN_TIMEOUT_S = 300.0  # a replica imports vLLM and starts an engine, beside whatever else the machine does
STREAM_TOKENS = 1500


def engine_process(cluster: Cluster) -> psutil.Process:
    return cluster.engine_processes("hot")[0]


def replica_process(cluster: Cluster) -> psutil.Process:
    return cluster.replica_processes("HotEngine")[0]


class Load:
    """Streams that have begun on both paths, and hot requests that have no byte yet."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.hot_streams: list[Ask] = []
        self.cold_streams: list[Ask] = []
        self.hot_whole: list[Ask] = []
        self._session, self._url = session, url

    async def begin(self) -> None:
        # The cold ones first: beside two hot engines that decode on both cores they would not begin before those end.
        self.cold_streams = await self._begun(4, "cold")
        self.hot_streams = await self._begun(8, "hot")
        body = completion(300, path="hot")
        self.hot_whole = [Ask(self._session, self._url, body) for _ in range(12)]
        await asyncio.sleep(0.1)  # on their way to both replicas

    async def _begun(self, streams: int, path: str) -> list[Ask]:
        body = completion(STREAM_TOKENS, path=path, stream=True)
        askings = [Ask(self._session, self._url, body) for _ in range(streams)]
        await asyncio.gather(*(asking.began.wait() for asking in askings))
        return askings

    async def replies(self, askings: list[Ask]) -> list[Reply]:
        return list(await asyncio.gather(*(asking.task for asking in askings)))


@pytest.mark.parametrize("victim", [engine_process, replica_process])
async def test_a_dead_hot_engine_costs_only_the_streams_that_had_begun_on_it(
    plumbing: Stack, plumbing_cluster: Cluster, victim: Callable[[Cluster], psutil.Process]
) -> None:
    url = plumbing.url + COMPLETIONS
    await asyncio.to_thread(_wait_for_both_hot_replicas, plumbing_cluster)
    dying = victim(plumbing_cluster)
    family = [dying, *dying.children(recursive=True)]
    async with open_session() as session:
        load = Load(session, url)
        await load.begin()
        dying.kill()
        after = [await Ask(session, url, completion(5, path="hot")).task for _ in range(10)]
        hot, cold, whole = [await load.replies(a) for a in (load.hot_streams, load.cold_streams, load.hot_whole)]

    assert all(reply.complete for reply in cold), "the other path was touched"
    assert [reply.status for reply in whole + after] == [200] * (len(whole) + len(after))
    lost = {reply.replica for reply in hot if not reply.complete}
    assert len(lost) == 1, "one replica died, and streams were running on it"
    assert {reply.replica for reply in hot} > lost, "streams were running on the other replica too"
    for reply in hot:
        assert reply.complete == (reply.replica not in lost)
        if not reply.complete:
            assert "[DONE]" not in reply.events
            assert reply.chunks[-1]["error"]["code"] == "engine_failed"
    assert {reply.replica for reply in after}.isdisjoint(lost)

    eventually(lambda: not any(map(process_name, family)), "the dead replica's own processes gone")
    await asyncio.to_thread(_wait_for_both_hot_replicas, plumbing_cluster)
    await _new_replica_answers(url, known={reply.replica for reply in hot})
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)


def _wait_for_both_hot_replicas(cluster: Cluster) -> None:
    eventually(lambda: cluster.running_replicas("HotEngine") == 2, "two running hot replicas", RETURN_TIMEOUT_S)


async def _new_replica_answers(url: str, known: set[str]) -> None:
    async with open_session() as session:
        for _ in range(200):
            reply = await Ask(session, url, completion(2, path="hot")).task
            assert reply.status == 200
            if reply.replica not in known:
                return
    raise AssertionError("no request reached the new replica")


def test_a_path_without_an_engine_is_not_ready_until_it_has_one_again(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    def status_of(path: str) -> int:
        return httpx.post(plumbing.url + COMPLETIONS, json=completion(5, path=path), timeout=120).status_code

    plumbing_cluster.engine_processes("cold")[0].kill()
    eventually(lambda: plumbing.readiness() == 503, "not ready")
    response = httpx.get(f"{plumbing.url}/ready", timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "not_ready")
    assert "ColdEngine" in error["message"]
    assert int(response.headers["retry-after"]) >= 1
    assert httpx.get(f"{plumbing.url}/health", timeout=60).status_code == 200
    assert status_of("hot") == 200
    eventually(lambda: plumbing.readiness() == 200, "ready again", RETURN_TIMEOUT_S)
    assert status_of("cold") == 200


async def test_a_dead_ingress_leaves_no_request_running_and_comes_back(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    url = plumbing.url + COMPLETIONS
    ingress = plumbing_cluster.replica_processes("Ingress")[0]
    async with open_session() as session:
        streams = [Ask(session, url, completion(7000, path=p, stream=True)) for p in ("hot", "hot", "cold", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in streams))
        whole = [Ask(session, url, completion(7000, path=path)) for path in ("hot", "cold") * 4]
        await asyncio.sleep(0.2)  # on their way to the engines
        ingress.kill()
        ended = await asyncio.gather(*(asking.task for asking in streams + whole), return_exceptions=True)
    assert not any(isinstance(reply, Reply) and reply.status == 200 and b"[DONE]" in reply.body for reply in ended)
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)
    eventually(lambda: plumbing.readiness() == 200, "the ingress answers again", RETURN_TIMEOUT_S)
    async with open_session() as session:
        replies = [await Ask(session, url, completion(5, path=path)).task for path in ("hot", "cold")]
    assert [reply.status for reply in replies] == [200, 200]
