"""Whom a key belongs to, what it may do, and what a key file must not say."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from app.config.keys import KeyRing, Quota
from app.errors import ConfigError

IDE = {"name": "ide", "key": "sk-ide-12345", "allow": ["path"]}
BATCH = {"name": "batch", "sha256": hashlib.sha256(b"sk-batch-12345").hexdigest(), "allow": ["priority", "cache_salt"]}


def ring(*entries: dict[str, Any], isolate: bool = False) -> KeyRing:
    return KeyRing.from_document(list(entries), isolate)


def test_a_plain_key_is_known_with_its_permissions() -> None:
    client = ring(IDE, BATCH).identify("sk-ide-12345")
    assert client is not None
    assert (client.name, client.permissions) == ("ide", {"path"})


def test_a_digest_stands_for_its_key() -> None:
    client = ring(IDE, BATCH).identify("sk-batch-12345")
    assert client is not None
    assert (client.name, client.permissions) == ("batch", {"priority", "cache_salt"})


@pytest.mark.parametrize(
    "presented", ["", "sk-ide-1234", "sk-ide-123456", "SK-IDE-12345", BATCH["sha256"], "\udce4\udcf6", "ключ"]
)
def test_anything_else_is_nobody(presented: str) -> None:
    assert ring(IDE, BATCH).identify(presented) is None


def test_each_isolated_key_has_a_salt_of_its_own_that_stays_the_same() -> None:
    salts = [ring(IDE, BATCH, isolate=True).identify(key) for key in ("sk-ide-12345", "sk-batch-12345", "sk-ide-12345")]
    ide, batch, again = [client.cache_salt for client in salts if client is not None]
    assert ide
    assert batch
    assert ide == again != batch


def test_a_salt_does_not_give_the_key_away() -> None:
    client = ring(BATCH, isolate=True).identify("sk-batch-12345")
    assert client is not None
    assert client.cache_salt not in (BATCH["sha256"], "sk-batch-12345")


def test_without_isolation_there_is_no_salt() -> None:
    client = ring(IDE).identify("sk-ide-12345")
    assert client is not None
    assert client.cache_salt is None


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (None, "(document)"),
        ({}, "(document)"),
        ("text", "(document)"),
        ([], "at least one key"),
        ([{"name": "a"}], "exactly one"),
        ([{"name": "a", "key": "sk-secret-1", "sha256": "0" * 64}], "exactly one"),
        ([{"name": "a", "key": "short"}], "0.key"),
        ([{"name": "a", "sha256": "0" * 63}], "0.sha256"),
        ([{"name": "a", "sha256": "G" * 64}], "0.sha256"),
        ([{"name": "", "key": "sk-secret-1"}], "0.name"),
        ([{"key": "sk-secret-1"}], "0.name"),
        ([{"name": "a", "key": "sk-secret-1", "allow": ["root"]}], "0.allow"),
        ([{"name": "a", "key": "sk-secret-1", "role": "x"}], "0.role"),
        ([{"name": "a", "key": "sk-secret-1", "priority": 100}], "0.priority"),
        ([{"name": "a", "key": "sk-secret-1", "requests_per_minute": 0}], "0.requests_per_minute"),
        ([{"name": "a", "key": "sk-secret-1"}, {"name": "a", "key": "sk-secret-2"}], "differ"),
        ([{"name": "a", "key": "sk-secret-1"}, {"name": "b", "key": "sk-secret-1"}], "differ"),
    ],
)
def test_a_faulty_key_file_is_refused_without_telling_a_secret(document: Any, where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KeyRing.from_document(document, isolate=False)
    assert where in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_plain_key_and_its_own_digest_are_one_key_twice() -> None:
    with pytest.raises(ConfigError, match="differ"):
        ring(IDE, {"name": "twin", "sha256": hashlib.sha256(b"sk-ide-12345").hexdigest()})


def test_a_key_carries_its_quota_and_priority() -> None:
    client = ring({**IDE, "requests_per_minute": 60, "concurrent_requests": 2, "priority": 10}).identify("sk-ide-12345")
    assert client is not None
    assert (client.quota, client.priority) == (Quota(60, None, 2), 10)


def test_a_key_without_limits_is_unlimited_and_of_middling_priority() -> None:
    client = ring(IDE).identify("sk-ide-12345")
    assert client is not None
    assert (client.quota, client.priority) == (Quota(None, None, None), 50)
