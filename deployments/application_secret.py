"""The application's secret: made once per Ray cluster, the same in every replica, and in no configuration.

In the arguments of a deployment a new secret would restart all replicas with each redeploy.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

SECRET_BYTES = 32
_NAMESPACE = b"kvpulse"


@dataclass(frozen=True, slots=True, repr=False)
class FeedKeys:
    """Two keys from one secret, so that neither tells anything of the other.

    Args:
        hashing: for ChainHasher: who lacks it cannot test guesses of a prompt.
        signing: for PulseMessages.
    """

    hashing: bytes
    signing: bytes

    @classmethod
    def derived_from(cls, secret: bytes) -> FeedKeys:
        return cls(*(blake2b(key=secret, person=use, digest_size=32).digest() for use in (b"kvp-hash", b"kvp-sign")))


class KeyValueStore(Protocol):
    """Ray's internal one, held by the cluster's head."""

    def put(self, key: bytes, value: bytes) -> None:
        """Keep `value` unless `key` has one already."""

    def get(self, key: bytes) -> bytes | None: ...


class RayStore:
    """Whoever reaches it can run code in the cluster anyway."""

    def put(self, key: bytes, value: bytes) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)

    def replace(self, key: bytes, value: bytes) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)

    def get(self, key: bytes) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        value: bytes | None = _internal_kv_get(key, namespace=_NAMESPACE)
        return value


def feed_keys(
    application: str, store: KeyValueStore, new_secret: Callable[[int], bytes] = secrets.token_bytes
) -> FeedKeys:
    """The keys of one application. Whoever asks first makes its secret.

    Raises:
        RuntimeError: the store kept nothing.
    """
    key = f"{application}/secret".encode()
    store.put(key, new_secret(SECRET_BYTES))
    secret = store.get(key)
    if secret is None:
        raise RuntimeError(f"Ray's internal store did not keep the secret of {application}")
    return FeedKeys.derived_from(secret)
