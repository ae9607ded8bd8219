"""A replica that comes later has computed what is hot before it takes traffic."""

from __future__ import annotations

import random
import re

from tests.integration.client import COMPLETIONS
from tests.integration.cluster import Cluster, eventually
from tests.integration.live_events import update_of
from tests.integration.routing import body, explain, open_client, token_ids
from tests.integration.stack import Stack

PREFIX_TOKENS = 1024
ENOUGH_TO_BE_FREQUENT = 30
RETURN_TIMEOUT_S = 300.0


def prewarmed_tokens(stack: Stack) -> list[int]:
    return [int(found) for found in re.findall(r"hot: pre-warmed (\d+) tokens", stack.log_text())]


def test_a_new_replica_holds_the_hottest_prefix_before_its_first_request(
    plumbing: Stack, plumbing_cluster: Cluster
) -> None:
    eventually(lambda: plumbing_cluster.running_replicas("HotEngine") == 2, "two hot replicas", RETURN_TIMEOUT_S)
    rng = random.Random(41)
    prefix = token_ids(rng, PREFIX_TOKENS)
    with open_client(plumbing) as client:

        def board_has_it() -> bool:
            client.post(COMPLETIONS, json=body(prefix + token_ids(rng, 40), 2)).raise_for_status()
            return any(hot["length_tokens"] == PREFIX_TOKENS for hot in update_of(plumbing)["prefixes"])

        for _ in range(ENOUGH_TO_BE_FREQUENT):
            client.post(COMPLETIONS, json=body(prefix + token_ids(rng, 40), 2)).raise_for_status()
        eventually(board_has_it, "the prefix on the board", RETURN_TIMEOUT_S)
        known = set(update_of(plumbing)["replicas"])
        plumbing_cluster.replica_processes("HotEngine")[0].kill()

        def newcomer() -> str | None:
            """It is followed as soon as it takes traffic, and what it holds is told by its own feed."""
            request = explain(client, body([*prefix, 9], 2))
            for replica in request["replicas"]:
                if replica["replica"] not in known and replica["matched_tokens"] >= PREFIX_TOKENS:
                    return str(replica["replica"])
            return None

        assert eventually(newcomer, "a new replica that holds the prefix", RETURN_TIMEOUT_S)
    told = eventually(lambda: [each for each in prewarmed_tokens(plumbing) if each], "the line of the log", 30)
    assert told[-1] >= PREFIX_TOKENS
    assert 0 in prewarmed_tokens(plumbing), "the first replicas found a board that knew nothing, and started"
