"""Where nothing, or little, speaks for one replica: requests spread over those that are equal, and no router herds."""

from __future__ import annotations

from collections import Counter

from app.decisions.routing import RoutingDecision, RoutingReason
from tests.unit.app.decisions.routing_fleet import PROMPT, SYSTEM, Fleet, ids


def test_requests_without_any_match_spread() -> None:
    chosen = Fleet(ids(4)).choices()
    assert set(chosen) == set(ids(4)) and max(chosen.values()) < 200


def test_a_match_below_the_useful_minimum_spreads_too() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", PROMPT[:1])
    decisions = [fleet.decide() for _ in range(50)]
    assert {each.replica_id for each in decisions} == {"a", "b"}
    assert {each.reason for each in decisions} == {RoutingReason.TIE}


def test_a_prompt_shorter_than_a_block_is_routed_by_load() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", PROMPT, queued_prefill_tokens=500)
    assert fleet.decide(hashes=(), rest_tokens=20) == RoutingDecision("b", RoutingReason.LEAST_LOADED, 0, 20.0)


def test_a_common_system_prompt_does_not_gather_traffic() -> None:
    """One replica holds the prefix of all; each request brings 700 tokens of its own that wait there."""
    fleet = Fleet(ids(4))
    fleet.report("r0", SYSTEM)
    chosen: Counter[str] = Counter()
    for number in range(200):
        hashes = (*SYSTEM, *range(10_000 + 22 * number, 10_000 + 22 * (number + 1)))
        decision = fleet.decide(hashes)
        chosen[decision.replica_id] += 1
        fleet.view.debit(decision.replica_id, 1024 - decision.matched_tokens, 1024)
        fleet.report(decision.replica_id, hashes)
    assert max(chosen.values()) < 1.2 * 50


def test_an_overloaded_replica_loses_only_its_own_affinity() -> None:
    fleet = Fleet(ids(4))
    other = tuple(range(500, 532))
    fleet.report("r0", PROMPT, queued_prefill_tokens=50_000)
    fleet.report("r1", other)
    assert fleet.choices(50, hashes=other) == {"r1": 50}
    assert "r0" not in fleet.choices(50, hashes=PROMPT)


def test_ties_are_random() -> None:
    fleet = Fleet(ids(3))
    fleet.report("r0", queued_prefill_tokens=50)  # within the tolerance
    fleet.report("r1", queued_prefill_tokens=60)  # not
    assert set(fleet.choices(100)) == {"r0", "r2"}


def test_of_replicas_of_equal_cost_the_ones_that_decode_least_are_taken() -> None:
    """Their prompts would wait equally long, but each token of what is being written waits for a new prompt."""
    fleet = Fleet(ids(3))
    fleet.report("r1", running_requests=1, decode_tokens=400)  # 40 tokens of cost, within the tolerance
    assert set(fleet.choices(100)) == {"r0", "r2"}
    assert fleet.decide().reason is RoutingReason.TIE
    fleet.report("r2", running_requests=1, decode_tokens=300)
    assert fleet.choices(20) == {"r0": 20}
    assert fleet.decide().reason is RoutingReason.LEAST_LOADED
    fleet.report("r0", queued_prefill_tokens=100)
    assert fleet.choices(20) == {"r2": 20}


def test_routers_with_the_same_state_do_not_herd() -> None:
    chosen = Counter(Fleet(ids(10), seed=seed).decide().replica_id for seed in range(100))
    assert len(chosen) == 10 and max(chosen.values()) <= 25


def test_ten_routers_among_many_replicas_of_unequal_load_do_not_herd() -> None:
    def choice(seed: int) -> str:
        fleet = Fleet(ids(100), seed=seed)
        for number in range(100):
            fleet.report(f"r{number}", queued_prefill_tokens=100 * number)
        return fleet.decide().replica_id

    chosen = Counter(choice(seed) for seed in range(40))
    assert max(chosen.values()) <= 10
    assert all(int(replica_id[1:]) < 60 for replica_id in chosen)  # and none takes a bad one
