"""A slot is held as long as its answer lasts, and released after the companion has ended, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from ray.serve import context as serve_context

from app.decisions.routing import RoutingDecision, RoutingReason
from app.errors import UnavailableError
from app.state.cluster_view import ClusterView
from deployments import leases
from deployments.engine_errors import EngineLostError
from deployments.leases import Lease
from tests.fakes import FakeClock, FakeCompanion, FakeHandle, FakeMethod, FakeReplica, routed, until

A = FakeReplica("a", "127.0.0.1:7001", "token-a")
B = FakeReplica("b")


def lease_on(method: FakeMethod, excluded: frozenset[str] = frozenset(), timeout_s: float = 30.0) -> Lease:
    return Lease(FakeHandle(method), "hot", routed(excluded), timeout_s)  # type: ignore[arg-type]  # a stand-in, or a type that pydantic accepts


async def test_a_lease_tells_how_to_reach_its_replica() -> None:
    async with lease_on(FakeMethod([A])) as lease:
        assert (lease.replica_id, lease.address, lease.token) == ("a", "127.0.0.1:7001", "token-a")


async def test_every_lease_has_an_identity_of_its_own() -> None:
    method = FakeMethod([A])
    async with lease_on(method) as one, lease_on(method) as other:
        assert one.id != other.id


async def test_an_excluded_replica_is_not_leased() -> None:
    async with lease_on(FakeMethod([A, B]), frozenset({"a"})) as lease:
        assert lease.replica_id == "b"


async def test_without_room_in_time_the_path_is_unavailable() -> None:
    method = FakeMethod([A])
    with pytest.raises(UnavailableError, match="hot path") as unavailable:
        async with lease_on(method, frozenset({"a"}), timeout_s=0.01):
            pass
    assert (unavailable.value.code, unavailable.value.retry_after_s) == ("no_ready_engine", 0.01)
    assert method.log == []


async def test_a_lease_is_entered_before_the_slot_is_there_and_knows_its_replica() -> None:
    method = FakeMethod([A])
    method.may_reserve.clear()
    async with lease_on(method) as lease:
        assert (lease.replica_id, lease.address, method.log) == ("a", "127.0.0.1:7001", [])
        method.may_reserve.set()
        assert await lease.holds("a")
        assert method.log == ["reserved a", "companion ended on a"]


async def test_a_chosen_replica_that_gives_no_slot_is_told_apart_from_the_one_that_does() -> None:
    method = FakeMethod([A, B], full={"a"})
    method.may_reserve.clear()
    async with lease_on(method) as lease:
        assert lease.replica_id == "a"
        method.may_reserve.set()
        assert not await lease.holds("a")
        assert (lease.replica_id, lease.decision.replica_id, lease.decision.reason) == ("b", "b", "fallback")


@pytest.mark.parametrize("reserved", [True, False], ids=["with its slot", "before its slot"])
async def test_a_caller_who_leaves_releases_slot_and_debit(reserved: bool) -> None:
    view = ClusterView(FakeClock(), stale_after_s=1.0)
    view.keep_only({"a"})
    method = FakeMethod([A])
    method.may_reserve.clear()
    entered = asyncio.Event()

    async def answer() -> None:
        async with Lease(FakeHandle(method), "hot", routed(view=view), 30.0) as lease:  # type: ignore[arg-type]  # a stand-in
            entered.set()
            await lease.holds("a")
            await asyncio.Event().wait()

    answering = asyncio.create_task(answer())
    await entered.wait()
    assert view.standings()[0].pending_prefill_tokens == 10
    if reserved:
        method.may_reserve.set()
        await until(lambda: "reserved a" in method.log)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert view.standings()[0].pending_prefill_tokens == 0
    assert method.log == (["reserved a", "companion ended on a", "released a"] if reserved else [])


async def test_the_slot_is_released_after_the_companion_has_ended() -> None:
    companions: list[FakeCompanion] = []
    method = FakeMethod([A], lambda _, companion: companions.append(companion))
    entered = asyncio.Event()

    async def answer() -> None:
        async with lease_on(method):
            entered.set()

    answering = asyncio.create_task(answer())
    await entered.wait()
    await asyncio.sleep(0)
    assert method.log == ["reserved a"]
    companions[0].ended.set_result(None)
    await answering
    assert method.log == ["reserved a", "companion ended on a", "released a"]


async def test_a_caller_who_is_cancelled_while_leaving_still_releases() -> None:
    companions: list[FakeCompanion] = []
    method = FakeMethod([A], lambda _, companion: companions.append(companion))

    async def answer() -> None:
        async with lease_on(method):
            pass

    answering = asyncio.create_task(answer())
    await until(lambda: bool(companions))
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    companions[0].ended.set_result(None)
    await until(lambda: len(method.log) == 3)
    assert method.log[-1] == "released a"


async def test_an_error_under_the_lease_passes_through_and_releases() -> None:
    method = FakeMethod([A])
    with pytest.raises(KeyError):
        async with lease_on(method):
            raise KeyError
    assert method.log[-1] == "released a"


async def test_a_companion_that_fails_costs_nothing_but_its_slot() -> None:
    """Its replica died under the answer."""
    method = FakeMethod([A], lambda _, companion: companion.ended.set_exception(RuntimeError("actor died")))
    async with lease_on(method):
        pass
    assert method.log[-1] == "released a"


@pytest.mark.parametrize(("broken_off", "guard"), [(False, "COMPANION_END_S"), (True, "BROKEN_OFF_END_S")])
async def test_a_companion_that_does_not_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, broken_off: bool, guard: str
) -> None:
    monkeypatch.setattr(leases, guard, 0.01)
    companions: list[FakeCompanion] = []
    method = FakeMethod([A], lambda _, companion: companions.append(companion))
    with contextlib.suppress(KeyError):
        async with lease_on(method):
            if broken_off:
                raise KeyError
    assert companions[0].ended.cancelled()
    assert method.log[-1] == "released a"


async def test_serve_does_not_end_the_companion_with_the_request() -> None:
    """It cancels a request's own calls when the client leaves; the lease ends this one, once that has told the cost."""
    own: list[bool] = []

    def attend(_: FakeReplica, companion: FakeCompanion) -> None:
        own.append(serve_context._get_serve_request_context().cancel_on_parent_request_cancel)
        companion.ended.set_result(41)

    serve_context._serve_request_context.set(serve_context._RequestContext(cancel_on_parent_request_cancel=True))
    async with lease_on(FakeMethod([A], attend)) as lease:
        pass
    assert (own, lease.used_tokens) == ([False], 41)


async def test_a_replica_that_is_probed_and_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PROBE_TIMEOUT_S", 0.01)
    method = FakeMethod([A, B])
    method.may_reserve.clear()
    probing = routed(decision=RoutingDecision("b", RoutingReason.STALE_PROBE, 0, 0.0))
    lease = Lease(FakeHandle(method), "hot", probing, 30.0)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(EngineLostError, match="silent") as lost:
        async with lease:
            await lease.holds("b")
    assert (lease.replica_id, lost.value.suspect, method.log) == ("b", True, [])


async def test_a_replica_that_is_probed_and_gives_a_slot_is_used() -> None:
    method = FakeMethod([A, B])
    probing = routed(decision=RoutingDecision("b", RoutingReason.STALE_PROBE, 0, 0.0))
    async with Lease(FakeHandle(method), "hot", probing, 30.0) as lease:  # type: ignore[arg-type]  # a stand-in
        assert await lease.holds("b")


async def test_a_lease_that_has_ended_knows_what_the_companion_told() -> None:
    method = FakeMethod([A], lambda _, companion: companion.ended.set_result(42))
    async with lease_on(method) as lease:
        assert lease.used_tokens is None
    assert lease.used_tokens == 42
