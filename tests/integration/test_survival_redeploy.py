"""A changed configuration, or the end, lets answers that have begun come to their own end."""

from __future__ import annotations

import asyncio
import copy
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.integration.client import COMPLETIONS, Ask, completion
from tests.integration.cluster import Cluster, eventually
from tests.integration.stack import Stack

REDEPLOY_TIMEOUT_S = 420.0
TOKENS = 5000


def serve_deploy(stack: Stack, dashboard_url: str) -> None:
    config = copy.deepcopy(stack.config)
    config["applications"][0]["args"]["routing"]["assumed_output_tokens"] = 600
    serve = Path(sys.executable).with_name("serve")
    command = [serve, "deploy", "--address", dashboard_url, stack.write_config(config)]
    subprocess.run(command, cwd=stack.folder, check=True, capture_output=True, timeout=120)  # noqa: S603


async def test_answers_that_have_begun_outlive_a_redeploy(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    url = plumbing.url + COMPLETIONS
    async with aiohttp.ClientSession() as session:
        running = [Ask(session, url, completion(TOKENS, path=p, stream=True)) for p in ("hot", "hot", "cold")]
        whole = [Ask(session, url, completion(TOKENS, path=path)) for path in ("hot", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in running))
        await asyncio.to_thread(serve_deploy, plumbing, plumbing_cluster.dashboard_url)
        streams = [await asking.task for asking in running]
        answers = [await asking.task for asking in whole]
    assert all(reply.complete for reply in streams)
    assert [reply.json["usage"]["completion_tokens"] for reply in answers] == [TOKENS, TOKENS]


async def test_after_a_redeploy_the_new_configuration_serves(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    """It assumes longer answers, so a request without `max_tokens` has become cold."""

    async def path_without_max_tokens() -> str:
        body = {"model": completion(1)["model"], "messages": [{"role": "user", "content": "hi"}], "stop": ["a", "e"]}
        async with aiohttp.ClientSession() as session:
            try:
                reply = await Ask(session, plumbing.url + "/v1/chat/completions", body).task
            except aiohttp.ClientError:
                return "unreachable"
        return reply.headers.get("x-kvpulse-path", f"status {reply.status}")

    await asyncio.to_thread(plumbing_cluster.wait_until_idle)
