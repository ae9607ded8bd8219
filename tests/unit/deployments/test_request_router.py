"""The router asks the request where to go, offers Serve the others behind it, and never one that has just failed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.decisions.routing import RoutingDecision, RoutingReason
from app.state.cluster_view import ClusterView
from deployments.replica_sets import ReplicaSets
from deployments.request_router import PrefixCacheAwareRouter
from deployments.routed_request import RoutedRequest
from tests.fakes import FakeClock, FirstOfAll

VIEW = ClusterView(FakeClock(), stale_after_s=1.0)


def replicas(names: str) -> list[Any]:
    return [
        SimpleNamespace(
            replica_id=SimpleNamespace(unique_id=name), max_ongoing_requests=2, replica_metadata={"is": name}
        )
        for name in names
    ]


def wanting(name: str | Exception | None, excluded: str = "") -> RoutedRequest:
    """A request whose decision is that replica, or no decision, or a fault."""

    def decide() -> RoutingDecision | None:
        if isinstance(name, Exception):
            raise name
        return None if name is None else RoutingDecision(name, RoutingReason.PREFIX_HIT, 64, 1.0)

    return RoutedRequest(decide, lambda decision: VIEW.debit(decision.replica_id, 1, 1), set(excluded), FirstOfAll())


async def offered(names: str, *args: Any, queue_lengths: dict[str, int] | None = None) -> list[list[str]]:
    """Unique ids of the groups in the order in which Serve tries them."""
    router = PrefixCacheAwareRouter.__new__(PrefixCacheAwareRouter)  # its state is Serve's; of it only this is used
    known = queue_lengths or {}
    router._replica_queue_len_cache = SimpleNamespace(get=lambda replica_id: known.get(replica_id.unique_id))  # type: ignore[assignment]  # a stand-in
    groups = await router.choose_replicas(replicas(names), SimpleNamespace(args=args))  # type: ignore[arg-type]  # a stand-in
    return [[replica.replica_id.unique_id for replica in group] for group in groups]


async def test_the_replica_that_the_request_wants_stands_alone_and_the_others_behind_it() -> None:
    first, others = await offered("abc", wanting("b"))
    assert (first, set(others)) == (["b"], {"a", "c"})


async def test_the_choice_is_told_before_the_replica_is_asked_for_a_slot() -> None:
    request = wanting("b")
    await offered("ab", request)
    assert await request.early_choice == ("b", {"is": "b"})
    assert request.decision is not None and request.decision.matched_tokens == 64


async def test_a_replica_that_is_known_to_be_full_is_not_told_early() -> None:
    request = wanting("b")
    assert (await offered("ab", request, queue_lengths={"b": 2}))[0] == ["b"]
    await asyncio.sleep(0)
    assert not request.early_choice.done()


@pytest.mark.parametrize("wanted", [None, "z", ValueError("a fault")], ids=["no decision", "one that left", "a fault"])
async def test_without_a_usable_decision_a_random_replica_is_taken_and_called_a_fallback(wanted: Any) -> None:
    request = wanting(wanted)
    assert await offered("ab", request) == [["a"], ["b"]]
    assert request.decision is not None and request.decision.reason == "fallback"


@pytest.mark.parametrize(("excluded", "expected"), [("a", [["b"], ["c"]]), ("ab", [["c"], []]), ("abc", [])])
async def test_an_excluded_replica_is_never_offered(excluded: str, expected: list[list[str]]) -> None:
    assert await offered("abc", wanting("a", excluded)) == expected


async def test_a_request_that_is_offered_again_is_debited_once() -> None:
    view = ClusterView(FakeClock(), stale_after_s=1.0)
    view.keep_only({"a", "b"})
    wants = iter("ab")

    def decide() -> RoutingDecision:
        return RoutingDecision(next(wants), RoutingReason.TIE, 0, 0.0)

    request = RoutedRequest(decide, lambda made: view.debit(made.replica_id, 7, 9), (), FirstOfAll())
    await offered("ab", request)
    await offered("ab", request)
    pending = {standing.replica_id: standing.pending_prefill_tokens for standing in view.standings()}
    assert pending == {"a": 0, "b": 7}
    request.release()
    request.release()
    assert [standing.pending_prefill_tokens for standing in view.standings()] == [0, 0]


async def test_a_request_that_has_ended_before_it_is_routed_leaves_no_debit() -> None:
    view = ClusterView(FakeClock(), stale_after_s=1.0)
    view.keep_only({"a"})
    request = RoutedRequest(lambda: None, lambda made: view.debit(made.replica_id, 7, 9), (), FirstOfAll())
    request.release()
    await offered("a", request)
    assert view.standings()[0].pending_prefill_tokens == 0


@pytest.mark.parametrize(("names", "count"), [("", 0), ("a", 1), ("ab", 2), ("abcde", 2)])
async def test_a_call_that_is_no_request_gets_two_random_replicas(names: str, count: int) -> None:
    (group,) = await offered(names)
    assert len(set(group)) == len(group) == count


def test_who_listens_late_hears_the_last_set_and_every_later_one() -> None:
    sets, heard = ReplicaSets(), []
    sets.tell("HotEngine", {"a": {}})
    sets.tell("ColdEngine", {"x": {}})
    sets.listen("HotEngine", heard.append)
    sets.tell("HotEngine", {"b": {}})
    assert heard == [{"a": {}}, {"b": {}}]
