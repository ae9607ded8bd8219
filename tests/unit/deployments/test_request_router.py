"""The router offers Serve two random replicas, never one that has just failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.request_router import FailoverRouter


def replicas(*names: str) -> list[Any]:
    return [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in names]


async def offered(names: str, *args: Any) -> list[str]:
    """Unique ids in the order in which Serve gets them."""
    router = FailoverRouter.__new__(FailoverRouter)  # its state is Serve's; the choice uses none of it
    pending: Any = SimpleNamespace(args=args)
    (group,) = await router.choose_replicas(replicas(*names), pending)
    return [replica.replica_id.unique_id for replica in group]


@pytest.mark.parametrize(("names", "count"), [("", 0), ("a", 1), ("ab", 2), ("abcde", 2)])
async def test_serve_chooses_between_two(names: str, count: int) -> None:
    chosen = await offered(names, frozenset())
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(names)


@pytest.mark.parametrize("excluded", ["a", "ab", "abc"])
async def test_an_excluded_replica_is_never_offered(excluded: str) -> None:
    for _ in range(50):
        assert not set(await offered("abc", frozenset(excluded))) & set(excluded)


async def test_every_replica_comes_first_sometimes() -> None:
    """Of equally loaded replicas Serve takes the first, also of two."""
    assert {(await offered("ab", frozenset()))[0] for _ in range(200)} == {"a", "b"}
    assert {(await offered("abcd", frozenset()))[0] for _ in range(400)} == set("abcd")


async def test_a_call_without_arguments_excludes_nothing() -> None:
    assert set(await offered("ab")) == {"a", "b"}
    router = FailoverRouter.__new__(FailoverRouter)
    assert len((await router.choose_replicas(replicas("a", "b"), None))[0]) == 2
