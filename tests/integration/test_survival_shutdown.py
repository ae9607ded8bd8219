"""The end of the application lets answers come to their own end; the end of `serve run` leaves no process."""

from __future__ import annotations

import asyncio

from tests.integration.client import COMPLETIONS, Ask, completion, open_session
from tests.integration.cluster import Cluster
from tests.integration.stack import Stack


async def test_answers_that_have_begun_outlive_the_application(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    url = plumbing.url + COMPLETIONS
    async with open_session() as session:
        streams = [Ask(session, url, completion(2500, path=path, stream=True)) for path in ("hot", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in streams))
        await asyncio.to_thread(plumbing_cluster.delete_application)
        replies = [await asking.task for asking in streams]
    assert all(reply.complete for reply in replies)


def test_an_interrupted_server_leaves_no_process(plumbing: Stack) -> None:
    plumbing.interrupt()
    assert plumbing.wait_until_stopped() == []
