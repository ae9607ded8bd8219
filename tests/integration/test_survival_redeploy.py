"""A changed configuration lets answers that have begun come to their own end, and then serves."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.integration.client import CHAT, COMPLETIONS, PATH_HEADER, Ask, completion, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.configs import MODEL
from tests.integration.stack import Stack

REDEPLOY_TIMEOUT_S = 420.0
TOKENS = 3000


def deploy(stack: Stack, config: dict[str, Any], dashboard_url: str) -> None:
    serve = Path(sys.executable).with_name("serve")
    command = [serve, "deploy", "--address", dashboard_url, stack.write_config(config)]
    subprocess.run(command, cwd=stack.folder, check=True, capture_output=True, timeout=120)  # noqa: S603


async def test_answers_that_have_begun_outlive_a_redeploy(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    """The new configuration assumes long answers: it serves once a request without `max_tokens` has become cold."""
    changed = copy.deepcopy(plumbing.config)
    changed["applications"][0]["args"]["routing"]["assumed_output_tokens"] = 600
    url = plumbing.url + COMPLETIONS
    async with open_session() as session:
        streams = [Ask(session, url, completion(TOKENS, path=path, stream=True)) for path in ("hot", "hot", "cold")]
        whole = [Ask(session, url, completion(TOKENS, path=path)) for path in ("hot", "cold")]
        await asyncio.gather(*(asking.began.wait() for asking in streams))
        await asyncio.to_thread(deploy, plumbing, changed, plumbing_cluster.dashboard_url)
        replies = [await asking.task for asking in streams]
        answers = [await asking.task for asking in whole]
    assert all(reply.complete for reply in replies)
    assert [reply.json["usage"]["completion_tokens"] for reply in answers] == [TOKENS, TOKENS]

    def path_without_a_limit() -> str | None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stop": ["a", "e", "i"]}
        try:
            return httpx.post(plumbing.url + CHAT, json=body, timeout=120).headers.get(PATH_HEADER)
        except httpx.TransportError:
            return None

    eventually(lambda: path_without_a_limit() == "cold", "the new configuration serves", REDEPLOY_TIMEOUT_S)
    eventually(lambda: plumbing_cluster.running_replicas("HotEngine") == 2, "all replicas renewed", REDEPLOY_TIMEOUT_S)
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)
