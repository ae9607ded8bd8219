"""A slot is held as long as its answer lasts, and released after the companion has ended, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import UnavailableError
from deployments import leases
from deployments.leases import Lease
from tests.fakes import FakeCompanion, FakeHandle, FakeMethod, FakeReplica, until

A = FakeReplica("a", "127.0.0.1:7001", "token-a")
B = FakeReplica("b")


def lease_on(method: FakeMethod, excluded: frozenset[str] = frozenset(), timeout_s: float = 30.0) -> Lease:
    return Lease(FakeHandle(method), "hot", excluded, timeout_s)  # type: ignore[arg-type]  # a stand-in, or a type that pydantic accepts


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


async def test_a_companion_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "COMPANION_END_S", 0.01)
    companions: list[FakeCompanion] = []
    method = FakeMethod([A], lambda _, companion: companions.append(companion))
    async with lease_on(method):
        pass
    assert companions[0].ended.cancelled()
    assert method.log[-1] == "released a"
