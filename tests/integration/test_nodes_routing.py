"""Two Ray nodes, two ingress replicas, hot and cold engines with blocks of different sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cluster import Cluster, eventually
from tests.integration.routing import ask, body, matched, open_client, reusable, sessions, token_ids
from tests.integration.stack import Stack

ENOUGH_TO_REACH_BOTH_INGRESSES = 12


@pytest.fixture
def client(two_nodes: Stack) -> Iterator[httpx.Client]:
    with open_client(two_nodes) as opened:
        yield opened


def test_the_engines_are_on_both_nodes_and_reached_by_their_addresses(two_nodes: Stack) -> None:
    cluster = Cluster(two_nodes)
    try:
        replicas = [replica for name in ("HotEngine", "ColdEngine") for replica in cluster.replicas(name)]
        assert len({replica.node_id for replica in replicas}) == 2
        assert len(cluster.replicas("Ingress")) == 2
    finally:
        cluster.close()


@pytest.mark.parametrize(("path", "block_tokens"), [("hot", 32), ("cold", 64)])
def test_every_ingress_knows_what_every_replica_holds(client: httpx.Client, path: str, block_tokens: int) -> None:
    request = body(token_ids(random.Random(path), 700), model=f"smollm2-135m-instruct:{path}")
    first = ask(client, request)
    expected = {first.replica: reusable(request["prompt"], block_tokens)}

    def known_everywhere() -> bool:
        return all(matched(client, request) == expected for _ in range(ENOUGH_TO_REACH_BOTH_INGRESSES))

    eventually(known_everywhere, "both ingresses know the holder")
    asked = [ask(client, request) for _ in range(2 * ENOUGH_TO_REACH_BOTH_INGRESSES)]
    # On a busy machine a replica may have been silent for a second; then a request is sent to see whether it lives.
    probes = [again for again in asked if again.reason == "stale_probe"]
    routed = [again for again in asked if again not in probes]
    assert len(routed) >= ENOUGH_TO_REACH_BOTH_INGRESSES
    assert {(again.matched_tokens, again.cached_tokens) for again in routed} == {(expected[first.replica],) * 2}
    assert {again.replica for again in routed} <= {first.replica, *(probe.replica for probe in probes)}


async def test_predictions_hold_when_two_ingresses_send_to_the_same_engines(two_nodes: Stack) -> None:
    outcomes = await sessions(two_nodes, count=6, turns=24)
    assert sum(done.cached_tokens > 0 for done in outcomes) > len(outcomes) / 2, "a run without hits proves nothing"
    wrong = [done for done in outcomes if done.matched_tokens != done.cached_tokens]
    assert len(wrong) <= 0.01 * len(outcomes), wrong
