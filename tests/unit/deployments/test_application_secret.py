"""All replicas of an application have the same keys, whoever came first, and no key tells of another."""

from __future__ import annotations

import pytest

from deployments.application_secret import FeedKeys, feed_keys


class FakeStore:
    """First writer wins, as in Ray's internal store without `overwrite`."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.values.setdefault(key, value)

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)


def test_everyone_gets_the_keys_of_the_first() -> None:
    store = FakeStore()
    assert feed_keys("app", store) == feed_keys("app", store)


def test_applications_do_not_share_keys_and_neither_do_clusters() -> None:
    store = FakeStore()
    assert feed_keys("app", store) != feed_keys("other", store)
    assert feed_keys("app", store) != feed_keys("app", FakeStore())


def test_the_two_keys_differ_and_are_not_the_secret() -> None:
    secret = bytes(32)
    keys = FeedKeys.derived_from(secret)
    assert len({keys.hashing, keys.signing, secret}) == 3
    assert len(keys.hashing) == len(keys.signing) == 32


def test_keys_do_not_show_in_logs() -> None:
    keys = FeedKeys(b"hash key", b"sign key")
    assert "key" not in repr(keys).replace("FeedKeys", "")


def test_a_store_that_keeps_nothing_is_an_error() -> None:
    class Forgetful(FakeStore):
        def put(self, key: bytes, value: bytes) -> None:
            pass

    with pytest.raises(RuntimeError, match="did not keep"):
        feed_keys("app", Forgetful())
