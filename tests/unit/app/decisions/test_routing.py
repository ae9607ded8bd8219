"""The behaviours a router by prefix must get right, on small fleets whose costs are worked out by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from app.config.schema import RoutingConfig
from app.decisions.routing import RoutingDecision, RoutingReason, RoutingRequest, explain, route
from app.state.cluster_view import ClusterView
from app.state.pulse import CacheChange, ReplicaLoad
from tests.fakes import FakeClock

BLOCK = 32
RULES = RoutingConfig(
    uncached_weight=1.0,
    min_match_tokens=64,
    tie_tolerance_tokens=50,
    decode_weight=0.1,
    kv_busy_ratio=0.8,
    kv_full_ratio=0.95,
    kv_penalty_tokens=1000,
    session_discount_tokens=100,
    probe_period_s=5.0,
)
SYSTEM = tuple(range(1, 11))  # ten blocks that every request begins with
PROMPT = (*SYSTEM, *range(100, 122))  # 1,024 tokens and their 32 blocks


class Fleet:
    """Replicas that report what they are told to."""

    def __init__(self, replica_ids: Sequence[str], seed: int = 7) -> None:
        self.clock = FakeClock()
        self.rng = random.Random(seed)
        self.view = ClusterView(self.clock, stale_after_s=1.0, settle_s=0.2)
        self.view.keep_only(replica_ids)
        for replica_id in replica_ids:
            self.report(replica_id)

    def report(self, replica_id: str, stored: Sequence[int] = (), **load: float) -> None:
        self.view.apply(replica_id, CacheChange(stored=tuple(stored)), ReplicaLoad(**load))

    def decide(self, hashes: Sequence[int] = PROMPT, rest_tokens: int = 0, **request: object) -> RoutingDecision:
        decision = route(
            RoutingRequest(len(hashes) * BLOCK + rest_tokens, hashes, BLOCK, **request), self.view, RULES, self.rng
        )
        assert decision is not None
        return decision

    def choices(self, times: int = 600, **request: object) -> Counter[str]:
        return Counter(self.decide(**request).replica_id for _ in range(times))


def ids(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def test_without_a_replica_there_is_no_decision() -> None:
    assert route(RoutingRequest(10, (), BLOCK), Fleet([]).view, RULES, random.Random(1)) is None


def test_the_only_replica_is_taken_whatever_its_state() -> None:
    fleet = Fleet(["a"])
    fleet.view.disconnected("a")
    assert fleet.decide().reason is RoutingReason.ONLY_REPLICA


def test_a_cached_prefix_draws_the_request_and_the_cost_says_what_remains() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("b", PROMPT)
    decision = fleet.decide(rest_tokens=10)
    assert decision == RoutingDecision("b", RoutingReason.PREFIX_HIT, 1024, 10.0)


def test_the_last_token_of_a_fully_cached_prompt_is_computed_with_its_block() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("b", PROMPT)
    assert fleet.decide().matched_tokens == 1024 - BLOCK


def test_queued_work_outweighs_a_prefix_that_is_shorter() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", PROMPT, queued_prefill_tokens=900)
    assert fleet.decide(rest_tokens=1).replica_id == "a"  # 901 against 1,025
    fleet.report("a", queued_prefill_tokens=1100)
    assert fleet.decide(rest_tokens=1) == RoutingDecision("b", RoutingReason.LEAST_LOADED, 0, 1025.0)


@pytest.mark.parametrize(
    ("load", "cost"),
    [
        ({"queued_prefill_tokens": 300}, 1024 + 300),
        ({"decode_tokens": 300}, 1024 + 30),
        ({"kv_usage_ratio": 0.8}, 1024),
        ({"kv_usage_ratio": 0.9}, 1024 + 500),
        ({"waiting_requests": 9, "running_requests": 9, "preemptions": 9}, 1024),
    ],
)
def test_the_cost_is_in_tokens(load: dict[str, float], cost: float) -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", **load)
    scored = {
        each.standing.replica_id: each for each in explain(RoutingRequest(1024, PROMPT, BLOCK), fleet.view, RULES)
    }
    assert scored["a"].cost == pytest.approx(cost)
    assert scored["b"].cost == 1024


def test_what_was_just_sent_counts_before_any_report() -> None:
    fleet = Fleet(["a", "b"])
    debit = fleet.view.debit("a", 500, 0)
    assert fleet.choices(50) == {"b": 50}
    debit.release()
    assert set(fleet.choices(50)) == {"a", "b"}


def test_work_that_a_hit_saves_weighs_more_than_waiting() -> None:
    """Two replicas, 1,024 tokens queued where the prefix is: cheaper there as soon as computing weighs more."""
    fleet = Fleet(["a", "b"])
    fleet.report("a", PROMPT, queued_prefill_tokens=2000)
    request = RoutingRequest(1025, PROMPT, BLOCK)
    for weight, expected in ((1.0, "b"), (4.0, "a")):
        rules = RULES.model_copy(update={"uncached_weight": weight})
        decision = route(request, fleet.view, rules, fleet.rng)
        assert decision is not None and decision.replica_id == expected


def test_requests_with_the_same_new_prefix_follow_the_first() -> None:
    fleet = Fleet(ids(4))
    first = fleet.decide(rest_tokens=1)
    sent = fleet.view.debit(first.replica_id, 500, 1025, PROMPT)
    second = fleet.decide(rest_tokens=1)
    assert (second.replica_id, second.reason) == (first.replica_id, RoutingReason.PREFIX_HIT)
    sent.release()
    assert {fleet.decide(rest_tokens=1).reason for _ in range(20)} == {RoutingReason.TIE}


def test_a_full_replica_keeps_what_is_cheapest_there() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", PROMPT, kv_usage_ratio=0.96)  # costs 800 more
    assert fleet.decide(rest_tokens=1).replica_id == "a"


def test_a_few_very_long_requests_weigh_more_than_many_short_ones() -> None:
    fleet = Fleet(["few_long", "many_short"])
    fleet.report("few_long", running_requests=2, decode_tokens=60_000)
    fleet.report("many_short", running_requests=20, decode_tokens=10_000)
    assert fleet.decide().replica_id == "many_short"


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


def test_a_session_returns_at_equal_cost_but_not_at_any_cost() -> None:
    fleet = Fleet(ids(4))
    assert fleet.choices(50, session_replica="r2") == {"r2": 50}
    fleet.report("r2", queued_prefill_tokens=200)
    assert "r2" not in fleet.choices(50, session_replica="r2")
    assert len(fleet.choices(100, session_replica="gone")) == 3


def test_an_excluded_replica_is_never_chosen_while_another_exists() -> None:
    fleet = Fleet(["a", "b", "c"])
    fleet.report("a", PROMPT)
    fleet.report("b", kv_usage_ratio=1.0, queued_prefill_tokens=10**6)
    fleet.view.disconnected("c")
    assert set(fleet.choices(50, excluded={"a"})) <= {"b", "c"}
    assert fleet.choices(50, excluded={"a", "c"}) == {"b": 50}
    assert fleet.decide(excluded={"a", "b", "c"}).reason is RoutingReason.FALLBACK


def test_a_stale_replica_is_used_once_per_period_and_otherwise_only_if_the_others_are_full() -> None:
    fleet = Fleet(["fresh", "silent"])
    fleet.clock.advance(2.0)
    fleet.report("fresh", queued_prefill_tokens=10**6)
    probe = fleet.decide()
    assert (probe.replica_id, probe.reason) == ("silent", RoutingReason.STALE_PROBE)
    fleet.view.debit("silent", 1024, 1024)
    assert fleet.choices(50) == {"fresh": 50}
    fleet.clock.advance(5.0)
    fleet.view.heartbeat("fresh")
    assert fleet.decide().reason is RoutingReason.STALE_PROBE
    fleet.view.debit("silent", 1024, 1024)
    fleet.report("fresh", kv_usage_ratio=0.96)
    full = fleet.decide()
    assert (full.replica_id, full.reason) == ("silent", RoutingReason.FALLBACK)


def test_when_no_feed_works_requests_spread_by_what_was_sent() -> None:
    fleet = Fleet(ids(4))
    for replica_id in ids(4):
        fleet.view.disconnected(replica_id)
    chosen: Counter[str] = Counter()
    for _ in range(100):
        decision = fleet.decide()
        fleet.view.debit(decision.replica_id, 1024, 1024)
        chosen[decision.replica_id] += 1
        assert decision.reason is RoutingReason.FALLBACK
    assert max(chosen.values()) - min(chosen.values()) <= 1


def test_when_all_are_full_the_cheapest_is_taken() -> None:
    fleet = Fleet(["a", "b"])
    fleet.report("a", kv_usage_ratio=1.0, queued_prefill_tokens=500)
    fleet.report("b", kv_usage_ratio=1.0)
    decision = fleet.decide()
    assert (decision.replica_id, decision.reason) == ("b", RoutingReason.FALLBACK)


def test_the_one_usable_replica_among_many_stale_ones_is_found() -> None:
    fleet = Fleet(ids(200))
    for replica_id in ids(200):
        fleet.view.debit(replica_id, 0, 0).release()  # so that no probe is due
    fleet.clock.advance(2.0)
    fleet.report("r150")
    assert fleet.choices(20) == {"r150": 20}
    fleet.report("r7", PROMPT)
    assert fleet.choices(20, excluded={"r7"}) == {"r150": 20}


def test_a_prefix_is_found_however_large_the_fleet() -> None:
    fleet = Fleet(ids(1000))
    for replica_id in ids(1000):
        fleet.report(replica_id, SYSTEM)
    fleet.report("r777", PROMPT)
    decision = fleet.decide(rest_tokens=1)
    assert (decision.replica_id, decision.matched_tokens) == ("r777", 1024)
