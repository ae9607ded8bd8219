"""The behaviours a router by prefix must get right, on small fleets whose costs are worked out by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from app.decisions.routing import RoutingDecision, RoutingReason, RoutingRequest, explain, route
from tests.unit.app.decisions.routing_fleet import BLOCK, PROMPT, RULES, SYSTEM, Fleet, ids


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
