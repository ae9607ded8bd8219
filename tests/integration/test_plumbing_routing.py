"""Requests go where the engines' own caches say that they cost least: real engines, real events, real answers."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.client import COMPLETIONS, Ask, open_session
from tests.integration.cluster import Cluster, eventually
from tests.integration.routing import ask, body, explain, matched, open_client, reusable, sessions, token_ids
from tests.integration.stack import Stack


@pytest.fixture
def client(plumbing: Stack) -> Iterator[httpx.Client]:
    with open_client(plumbing) as opened:
        yield opened


def known(client: httpx.Client, request: dict[str, Any]) -> dict[str, int]:
    """Who holds the prompt, once somebody is known to hold all that can be reused of it."""

    def holders() -> dict[str, int]:
        found = matched(client, request)
        return found if reusable(request["prompt"]) in found.values() else {}

    return eventually(holders, "a replica known to hold the prompt")


def test_a_prompt_that_was_answered_is_predicted_to_hit_and_does(client: httpx.Client) -> None:
    request = body(token_ids(random.Random(1), 700))
    first = ask(client, request)
    assert (first.matched_tokens, first.cached_tokens) == (0, 0)
    assert known(client, request) == {first.replica: reusable(request["prompt"])}
    again = ask(client, request)
    assert (again.replica, again.reason) == (first.replica, "prefix_hit")
    assert again.matched_tokens == again.cached_tokens == reusable(request["prompt"])


def test_a_prompt_of_full_blocks_computes_its_last_one_again_as_predicted(client: httpx.Client) -> None:
    request = body(token_ids(random.Random(2), 640))
    ask(client, request)
    known(client, request)
    again = ask(client, request)
    assert again.matched_tokens == again.cached_tokens == 608


def test_a_prefix_shorter_than_a_block_is_no_hit(client: httpx.Client) -> None:
    request = body(token_ids(random.Random(3), 31))
    ask(client, request)
    again = ask(client, request)
    assert again.matched_tokens == again.cached_tokens == 0


def test_what_the_answer_added_is_known_too(client: httpx.Client) -> None:
    """The next turn of a session begins with the answer of the last one."""
    prompt = token_ids(random.Random(4), 320)
    response = client.post(COMPLETIONS, json=body(prompt, 80, return_token_ids=True))
    answer = response.json()["choices"][0]["token_ids"]
    longer = body([*prompt, *answer, *token_ids(random.Random(5), 40)])
    held = (320 + 79) // 32 * 32  # the last token's values are not computed
    eventually(lambda: max(matched(client, longer).values(), default=0) == held, "the answer's blocks known")
    turn = ask(client, longer)
    assert turn.matched_tokens == turn.cached_tokens == held


def test_explaining_runs_nothing_and_says_what_then_happens(client: httpx.Client, plumbing_cluster: Cluster) -> None:
    request = body(token_ids(random.Random(6), 400))
    ask(client, request)
    known(client, request)
    plumbing_cluster.wait_until_idle()
    told = explain(client, request)
    assert plumbing_cluster.idle()
    assert told["features"] == {
        "prompt_tokens": 400,
        "max_output_tokens": 4,
        "sequences": 1,
        "forced_path": None,
        "cached_tokens": reusable(request["prompt"]),
        "heavy_prefix_tokens": 0,
    }
    assert (told["path"], told["reason"]) == ("hot", "short_prompt_and_output")
    assert len(told["replicas"]) == 2
    costs = [replica["cost_tokens"] for replica in told["replicas"]]
    assert costs == sorted(costs) and not any(replica["stale"] for replica in told["replicas"])
    done = ask(client, request)
    assert told["choice"] == {
        "replica": done.replica,
        "reason": done.reason,
        "matched_tokens": done.matched_tokens,
        "cost_tokens": costs[0],
    }


@pytest.mark.parametrize(
    ("fault", "status"), [({"model": "nobody"}, 404), ({"prompt": ""}, 400), ({"max_tokens": 10**6}, 400)]
)
def test_explaining_what_cannot_be_served_is_refused_as_the_request_would_be(
    client: httpx.Client, fault: dict[str, object], status: int
) -> None:
    request = body([7] * 40) | fault
    explained, asked = client.post("/v1/explain", json=request), client.post(COMPLETIONS, json=request)
    assert explained.status_code == asked.status_code == status
    assert explained.json() == asked.json()


def test_prompts_without_a_match_spread(client: httpx.Client) -> None:
    rng = random.Random(7)
    replicas = [ask(client, body(token_ids(rng, 100), 2)).replica for _ in range(24)]
    assert min(map(replicas.count, set(replicas))) >= 4 and len(set(replicas)) == 2


def test_one_system_prompt_for_all_does_not_gather_them_on_one_replica(plumbing: Stack, client: httpx.Client) -> None:
    system = token_ids(random.Random(8), 320)
    ask(client, body(system))
    known(client, body(system))

    async def burst() -> list[str]:
        rng = random.Random(9)
        async with open_session() as session:
            asks = [
                Ask(session, plumbing.url + COMPLETIONS, body([*system, *token_ids(rng, 600)], 40)) for _ in range(24)
            ]
            return [(await asked.task).replica for asked in asks]

    replicas = asyncio.run(burst())
    assert len(set(replicas)) == 2 and min(map(replicas.count, set(replicas))) >= 6


async def test_predictions_are_what_the_engines_find_while_their_caches_churn(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    """Twice as much is asked as both caches hold."""
    outcomes = await sessions(plumbing, count=8, turns=48)
    assert sum(done.cached_tokens > 0 for done in outcomes) > len(outcomes) / 2, "a run without hits proves nothing"
    wrong = [done for done in outcomes if done.matched_tokens != done.cached_tokens]
    assert len(wrong) <= 0.01 * len(outcomes), wrong


def test_a_cache_that_is_reset_is_forgotten_at_once(client: httpx.Client, plumbing_cluster: Cluster) -> None:
    request = body(token_ids(random.Random(10), 700))
    ask(client, request)
    known(client, request)
    plumbing_cluster.wait_until_idle()
    assert all(plumbing_cluster.call("hot", "reset_prefix_cache"))
    eventually(lambda: not matched(client, request), "nobody known to hold the prompt")
    again = ask(client, request)
    assert again.matched_tokens == again.cached_tokens == 0
    known(client, request)
    assert ask(client, request).cached_tokens == reusable(request["prompt"])


async def test_a_mass_cancel_leaves_every_counter_at_zero(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    rng = random.Random(11)
    async with open_session() as session:
        asks = [
            Ask(session, plumbing.url + COMPLETIONS, body(token_ids(rng, 900), 400, stream=True)) for _ in range(40)
        ]
        await asyncio.wait([asyncio.create_task(asked.began.wait()) for asked in asks[:8]])
        for asked in asks:
            asked.task.cancel()
        await asyncio.gather(*(asked.task for asked in asks), return_exceptions=True)
    with open_client(plumbing) as client:

        def all_zero() -> bool:
            replicas = explain(client, body([7] * 40))["replicas"]
            counted = (
                "running_requests",
                "waiting_requests",
                "queued_prefill_tokens",
                "decode_tokens",
                "kv_usage_ratio",
            )
            return all(
                not any(replica["load"][field] for field in counted)
                and not replica["pending_prefill_tokens"] + replica["pending_decode_tokens"]
                for replica in replicas
            )

        await asyncio.to_thread(eventually, all_zero, "loads and debits at zero")
    await asyncio.to_thread(plumbing_cluster.wait_until_idle)


def test_a_silent_replica_is_stale_not_empty_and_comes_back(
    plumbing: Stack, client: httpx.Client, plumbing_cluster: Cluster
) -> None:
    request = body(token_ids(random.Random(12), 700))
    ask(client, request)
    known(client, request)

    def standing(replica: str) -> dict[str, object]:
        return next(told for told in explain(client, request)["replicas"] if told["replica"] == replica)

    (holder,) = known(client, request)
    process = plumbing_cluster.replica_process("HotEngine", holder)
    process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: standing(holder)["stale"], "the silent replica is stale")
        assert standing(holder)["matched_tokens"] == reusable(request["prompt"])
        others = {ask(client, body(token_ids(random.Random(13 + n), 100), 2)).replica for n in range(3)}
        assert holder not in others
    finally:
        process.send_signal(signal.SIGCONT)
    eventually(lambda: not standing(holder)["stale"], "it is heard of again")
    assert ask(client, request).replica == holder
