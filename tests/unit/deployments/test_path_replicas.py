"""What one ingress knows of a path: the replicas that Serve names, followed by their feeds, hashed as they hash."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from app.config.schema import RoutingConfig
from app.requests import Prompt
from app.state.chain_hashes import ChainHasher, text_extra
from app.state.pulse import CacheChange, ReplicaLoad
from deployments.path_replicas import PathReplicas
from deployments.pulse_messages import FeedEndpoint
from tests.fakes import FirstOfAll

KEY = b"the application's key"
TOKENS = list(range(100))


class Followed:
    """A subscriber that only notes whom it should follow."""

    def __init__(self) -> None:
        self.endpoints: dict[str, FeedEndpoint] = {}

    def follow(self, replica_id: str, endpoint: FeedEndpoint, view: Any) -> None:
        self.endpoints[replica_id] = endpoint

    def unfollow(self, replica_id: str) -> None:
        del self.endpoints[replica_id]


def metadata(name: str, block_size: int = 32) -> dict[str, Any]:
    return {"feed": asdict(FeedEndpoint(f"tcp://{name}:1", f"tcp://{name}:2", block_size))}


@pytest.fixture
def followed() -> Followed:
    return Followed()


@pytest.fixture
def path(followed: Followed) -> PathReplicas:
    replicas = PathReplicas(RoutingConfig(), KEY, followed, FirstOfAll())  # type: ignore[arg-type]  # a stand-in
    replicas.told({"a": metadata("a"), "b": metadata("b")})
    return replicas


def test_the_replicas_that_serve_names_are_followed_and_no_others(path: PathReplicas, followed: Followed) -> None:
    assert followed.endpoints == {name: FeedEndpoint(f"tcp://{name}:1", f"tcp://{name}:2", 32) for name in "ab"}
    path.told({"b": metadata("b"), "c": metadata("c")})
    assert set(followed.endpoints) == {"b", "c"}
    assert {standing.replica_id for standing in path.view.standings()} == {"b", "c"}


def test_a_replica_that_has_left_is_forgotten_with_all_that_it_held(path: PathReplicas) -> None:
    held = path.request(Prompt(100, TOKENS)).hashes
    path.view.apply("a", CacheChange(stored=tuple(held)), ReplicaLoad())
    path.told({"b": metadata("b")})
    path.told({"a": metadata("a"), "b": metadata("b")})
    assert [standing.matched_blocks for standing in path.view.standings(held)] == [0, 0]


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_prompts_are_hashed_by_the_block_size_of_the_paths_engines(path: PathReplicas, block_size: int) -> None:
    path.told({"a": metadata("a", block_size)})
    request = path.request(Prompt(100, TOKENS))
    assert (request.block_size, request.hashes) == (block_size, ChainHasher(KEY, block_size).prompt(TOKENS))


def test_prompts_for_engines_that_cache_no_prefixes_match_nothing(path: PathReplicas) -> None:
    endpoint = FeedEndpoint("tcp://a:1", "tcp://a:2", 32, caches_prefixes=False)
    path.told({"a": {"feed": asdict(endpoint)}})
    assert list(path.request(Prompt(100, TOKENS)).hashes) == []


def test_a_salted_prompt_shares_nothing_with_the_same_prompt_unsalted(path: PathReplicas) -> None:
    plain, salted = path.request(Prompt(100, TOKENS)), path.request(Prompt(100, TOKENS, "of a tenant"))
    assert not set(plain.hashes) & set(salted.hashes)
    assert salted.hashes == ChainHasher(KEY, 32).prompt(TOKENS, text_extra("of a tenant"))


def test_before_any_replica_is_known_a_prompt_has_no_hashes_and_no_choice(followed: Followed) -> None:
    path = PathReplicas(RoutingConfig(), KEY, followed, FirstOfAll())  # type: ignore[arg-type]  # a stand-in
    request = path.request(Prompt(100, TOKENS))
    assert (list(request.hashes), path.explain(request)) == ([], ([], None))


async def test_a_routed_request_counts_what_its_replica_has_to_compute_until_it_is_released(path: PathReplicas) -> None:
    request = path.request(Prompt(100, TOKENS))
    for name in "ab":
        path.view.replace(name, request.hashes[:2] if name == "b" else (), ReplicaLoad())
    routed = path.routed(request, answer_tokens=50)
    assert routed.choose({"a": object(), "b": object()}, lambda _: True) == "b"
    standing = {s.replica_id: s for s in path.view.standings()}["b"]
    assert (standing.pending_prefill_tokens, standing.pending_decode_tokens) == (100 - 64, 150)
    routed.release()
    standing = {s.replica_id: s for s in path.view.standings()}["b"]
    assert (standing.pending_prefill_tokens, standing.pending_decode_tokens) == (0, 0)


def test_explaining_lists_every_replica_cheapest_first_and_debits_nothing(path: PathReplicas) -> None:
    request = path.request(Prompt(100, TOKENS))
    path.view.replace("a", (), ReplicaLoad())
    path.view.replace("b", request.hashes, ReplicaLoad())
    scored, decision = path.explain(request)
    assert [(replica.standing.replica_id, replica.matched_tokens) for replica in scored] == [("b", 96), ("a", 0)]
    assert decision is not None and (decision.replica_id, decision.reason) == ("b", "prefix_hit")
    assert not any(standing.pending_prefill_tokens for standing in path.view.standings())
