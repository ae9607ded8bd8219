"""API keys: what a key file may say, and who a presented key belongs to.

A key file is a YAML list. Each entry gives `name`, and either `key` (plain) or `sha256` (hex digest of the key), and
optionally what the key's owner may do beyond sending requests, how much, and how urgent it is beside others of its
path (0 to 99, lower is more urgent, 50 without):

    - {name: ide, key: sk-..., allow: [path], priority: 10}
    - {name: batch, sha256: 9f86d0..., allow: [priority], tokens_per_minute: 100000, concurrent_requests: 8}
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from app.config.part import PositiveInt
from app.errors import ConfigError
from app.requests import DEFAULT_PRIORITY, PRIORITY_BAND

Permission = Literal["path", "priority", "cache_salt", "kv_transfer_params", "pulse"]


@dataclass(frozen=True, slots=True)
class Quota:
    """How much one key may ask for; None is no limit. Tokens are prompt plus answer."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


UNLIMITED = Quota()


class KeyEntry(BaseModel):
    """One line of the key file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    key: str | None = Field(None, min_length=8)
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    allow: tuple[Permission, ...] = ()
    priority: int = Field(DEFAULT_PRIORITY, ge=0, lt=PRIORITY_BAND)
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    concurrent_requests: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_secret(self) -> KeyEntry:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give exactly one of `key` and `sha256`")
        return self

    @property
    def quota(self) -> Quota:
        return Quota(self.requests_per_minute, self.tokens_per_minute, self.concurrent_requests)

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256) if self.sha256 else hashlib.sha256((self.key or "").encode()).digest()


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a request, and what they may do. `cache_salt` keeps their prefixes apart from everyone else's."""

    name: str
    permissions: frozenset[Permission]
    cache_salt: str | None = None
    quota: Quota = UNLIMITED
    priority: int = DEFAULT_PRIORITY


class KeyRing:
    """The keys of one key file."""

    def __init__(self, entries: Iterable[KeyEntry], isolate: bool) -> None:
        self._clients = [(entry.digest, _client(entry, isolate)) for entry in entries]
        names = [client.name for _, client in self._clients]
        if not names or len(set(names)) != len(names) or len({digest for digest, _ in self._clients}) != len(names):
            raise ConfigError("the key file needs at least one key, and names and keys that differ from each other")

    @classmethod
    def from_document(cls, document: Any, isolate: bool) -> KeyRing:
        """Build from the parsed YAML.

        Raises:
            ConfigError: the document is not a list of valid entries. Secrets are never part of the message.
        """
        try:
            entries = TypeAdapter(tuple[KeyEntry, ...]).validate_python(document)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"key file, entry {where or '(document)'}: {first['msg']}") from None
        return cls(entries, isolate)

    def identify(self, presented: str) -> Client | None:
        """The owner of a presented key. Takes the same time whichever key matches, or none."""
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, client in self._clients:
            if hmac.compare_digest(known, digest):
                found = client
        return found


def _client(entry: KeyEntry, isolate: bool) -> Client:
    salt = _salt(entry.digest) if isolate else None
    return Client(entry.name, frozenset(entry.allow), salt, entry.quota, entry.priority)


def _salt(digest: bytes) -> str:
    """Derived from the key, so that every ingress replica finds the same one and nobody without the key does."""
    return hmac.new(digest, b"kvpulse cache salt", hashlib.sha256).hexdigest()
