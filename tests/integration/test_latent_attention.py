"""A model with multi-head latent attention. On a CPU vLLM turns its prefix cache off: then load alone decides."""

from __future__ import annotations

import random

from tests.integration.routing import ask, body, explain, open_client, token_ids
from tests.integration.stack import Stack


def test_replicas_without_a_prefix_cache_are_known_by_their_load(latent_attention: Stack) -> None:
    request = body(token_ids(random.Random(1), 300))
    with open_client(latent_attention) as client:
        outcomes = [ask(client, request) for _ in range(12)]
        replicas = explain(client, request)["replicas"]
    assert all(done.matched_tokens == done.cached_tokens == 0 for done in outcomes)
    assert len({done.replica for done in outcomes}) == 2, "nothing ties a prompt to a replica"
    assert len(replicas) == 2 and not any(replica["stale"] for replica in replicas)
