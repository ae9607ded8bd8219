"""The end of `serve run`: answers come to their own end, and no process is left."""

from __future__ import annotations

import asyncio

from tests.integration.client import COMPLETIONS, Ask, completion, open_session
from tests.integration.stack import Stack


async def test_an_interrupted_server_completes_its_answers_and_leaves_no_process(plumbing: Stack) -> None:
    url = plumbing.url + COMPLETIONS
    async with open_session() as session:
        streams = [Ask(session, url, completion(2000, path=path, stream=True)) for path in ("hot", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in streams))
        plumbing.interrupt()
        replies = [await asking.task for asking in streams]
    assert all(reply.complete for reply in replies)
    assert await asyncio.to_thread(plumbing.wait_until_stopped) == []
