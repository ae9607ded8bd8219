"""`kvpulse drain` lets answers come to their own end; the end of `serve run` leaves no process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx

from tests.integration.client import COMPLETIONS, Ask, completion, open_session
from tests.integration.cluster import Cluster
from tests.integration.stack import Stack


async def test_a_drained_application_completes_the_answers_that_have_begun(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    url = plumbing.url + COMPLETIONS
    async with open_session() as session:
        streams = [Ask(session, url, completion(2500, path=path, stream=True)) for path in ("hot", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in streams))
        drain = [Path(sys.executable).with_name("kvpulse"), "drain", "--address", plumbing_cluster.dashboard_url]
        draining = await asyncio.create_subprocess_exec(*drain)
        replies = [await asking.task for asking in streams]
        assert await draining.wait() == 0
    assert all(reply.complete for reply in replies)
    assert (await asyncio.to_thread(httpx.get, plumbing.url + "/health")).status_code != 200


def test_an_interrupted_server_leaves_no_process(plumbing: Stack) -> None:
    plumbing.interrupt()
    assert plumbing.wait_until_stopped() == []
