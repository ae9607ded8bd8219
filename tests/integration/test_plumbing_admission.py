"""What is decided of a request is told, explained beforehand, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.integration.client import CHAT, COMPLETIONS, PATH_HEADER, Ask, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.configs import MODEL
from tests.integration.routing import body, explain, open_client, token_ids
from tests.integration.stack import Stack


@pytest.fixture
def client(plumbing: Stack) -> Iterator[httpx.Client]:
    with open_client(plumbing) as opened:
        yield opened


def engines_are_free(client: httpx.Client) -> bool:
    states = explain(client, body([7] * 40))["engines"].values()
    return all((state["used_slots"], state["waiting"], state["lent"]) == (0, 0, {}) for state in states)


@pytest.mark.parametrize(
    ("max_tokens", "path", "priority"), [(4, "hot", "50"), (600, "cold", "250")], ids=["short", "long"]
)
def test_an_answer_tells_all_that_was_decided(client: httpx.Client, max_tokens: int, path: str, priority: str) -> None:
    headers = client.post(COMPLETIONS, json=body([11] * 40, max_tokens)).headers
    assert (headers[PATH_HEADER], headers["x-kvpulse-engines"], headers["x-kvpulse-priority"]) == (path, path, priority)
    assert (headers["x-kvpulse-admission"], headers["x-kvpulse-level"]) == ("home", "normal")
    assert headers["x-kvpulse-waited-ms"] == "0"
    assert "x-ratelimit-limit-tokens" not in headers  # there are no keys, so no quotas


def test_explaining_tells_admission_and_books_nothing(client: httpx.Client) -> None:
    eventually(lambda: engines_are_free(client), "no request anywhere")
    request = body(token_ids(random.Random(20), 300))
    before = explain(client, request)
    assert before["admission"] == {
        "action": "start",
        "reason": "home",
        "engines": "hot",
        "level": "normal",
        "output_cap_tokens": None,
        "retry_after_s": None,
        "prefill_s": before["admission"]["prefill_s"],
    }
    for _ in range(30):
        assert explain(client, request)["features"]["heavy_prefix_tokens"] == 0
    # A report of an earlier request may still come; what explaining had booked would stay.
    eventually(lambda: engines_are_free(client), "nothing is booked")


def test_a_session_keeps_its_path(client: httpx.Client) -> None:
    label = {"x-session-id": "a long review"}
    first = client.post(COMPLETIONS, json=body([12] * 40, 600), headers=label)
    second = client.post(COMPLETIONS, json=body([12] * 40, 4), headers=label)
    other = client.post(COMPLETIONS, json=body([12] * 40, 4), headers={"x-session-id": "another"})
    told = [(reply.headers[PATH_HEADER], reply.headers["x-kvpulse-reason"]) for reply in (first, second, other)]
    assert told == [("cold", "long_output"), ("cold", "session"), ("hot", "short_prompt_and_output")]


def test_a_prefix_that_many_share_makes_long_prompts_warm(client: httpx.Client) -> None:
    rng = random.Random(21)
    shared = token_ids(rng, 2400)
    asked = [client.post(COMPLETIONS, json=body([*shared, *token_ids(rng, 100)], 4)).headers for _ in range(24)]
    warm = [headers for headers in asked if headers["x-kvpulse-reason"] == "heavy_prefix"]
    assert warm, [headers["x-kvpulse-reason"] for headers in asked]
    assert (warm[0][PATH_HEADER], warm[0]["x-kvpulse-engines"]) == ("warm", "hot")


def test_the_priority_reaches_engines_that_heed_it_and_no_others(client: httpx.Client) -> None:
    """A priority that an engine does not know is an error there, so an answer proves it."""
    for path in ("hot", "cold"):
        reply = client.post(
            CHAT,
            json={"model": f"{MODEL}:{path}", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
        )
        assert reply.status_code == 200, reply.text


async def test_a_mass_cancel_leaves_admission_at_zero(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    """More than the slots of both paths: some run, some wait."""
    rng = random.Random(22)
    async with open_session() as session:
        asks = [
            Ask(session, plumbing.url + COMPLETIONS, body(token_ids(rng, 200), 500 + 200 * (n % 2), stream=True))
            for n in range(400)
        ]
        await asyncio.wait([asyncio.create_task(asked.began.wait()) for asked in asks[:8]])
        for asked in asks:
            asked.task.cancel()
        await asyncio.gather(*(asked.task for asked in asks), return_exceptions=True)
    with open_client(plumbing) as client:
        await asyncio.to_thread(eventually, lambda: engines_are_free(client), "nothing runs, waits or is lent")
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)


def log_lines(stack: Stack, request_id: str) -> list[str]:
    texts = (path.read_text(errors="replace") for path in stack.log_files())
    lines = [line for text in texts for line in text.splitlines() if "request path=" in line]
    return [line for line in lines if f" {request_id} -- " in line]


def used_tokens(line: str) -> str:
    return line.partition("used_tokens=")[2].split()[0]


@pytest.mark.parametrize("sequences", [1, 3])
def test_the_log_tells_what_the_engine_counted_and_no_content(
    plumbing: Stack, client: httpx.Client, sequences: int
) -> None:
    secret = "xylophone quartz"
    reply = client.post(COMPLETIONS, json=body([7] * 40, 6, n=sequences, temperature=1) | {"prompt": secret})
    line = eventually(lambda: log_lines(plumbing, reply.headers["x-request-id"]), "the request in the log")[0]
    assert "outcome=answered" in line, line
    assert used_tokens(line) == str(reply.json()["usage"]["total_tokens"])
    assert not any(secret in path.read_text(errors="replace") for path in plumbing.log_files())


@pytest.mark.parametrize("leaves_after_chunks", [1, 20])
async def test_a_stream_that_its_client_leaves_is_counted_as_far_as_it_came(
    plumbing: Stack, leaves_after_chunks: int
) -> None:
    """Each of several: whether the count gets home must not depend on which part notices first that the client left."""
    left: list[str] = []
    for _ in range(5):
        async with (
            open_session() as session,
            session.post(plumbing.url + COMPLETIONS, json=body([8] * 40, 5000, stream=True)) as response,
        ):
            for _ in range(leaves_after_chunks):
                await response.content.readany()
            left.append(response.headers["x-request-id"])
            response.close()
    for request_id in left:
        lines = await asyncio.to_thread(
            eventually, partial(log_lines, plumbing, request_id), f"request {request_id} in the log"
        )
        line = lines[0]
        assert "outcome=cancelled" in line, line
        assert used_tokens(line).isdigit(), line
        assert 40 + leaves_after_chunks <= int(used_tokens(line)) < 5040, line
