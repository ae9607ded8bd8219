"""The wire format of the pulse feed: msgpack under a keyed BLAKE2b signature."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import msgspec

from app.state.pulse import Pulse, Snapshot

SIGNATURE_BYTES = 16
NONCE_BYTES = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FeedEndpoint:
    """Where a replica's feed is; `dataclasses.asdict` of it travels in the replica's metadata.

    Args:
        pulses: ZMQ address of the PUB socket.
        snapshots: ZMQ address of the ROUTER socket.
        block_size: tokens per hashed block; prompts must be hashed by the same.
        caches_prefixes: False where vLLM has turned its prefix cache off: nothing is ever held.
    """

    pulses: str
    snapshots: str
    block_size: int
    caches_prefixes: bool = True


class PulseMessages:
    """Writes and reads the three messages. Reading gives None for what was not signed with the key, for that purpose.

    Sequence numbers make an old pulse useless to replay. A snapshot answers the nonce of its request, so an old one
    never passes for a new one.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encoder = msgspec.msgpack.Encoder()

    def pulse(self, pulse: Pulse) -> bytes:
        return self._sealed(b"kvpulse-pulse", self._encoder.encode(pulse))

    def read_pulse(self, frame: bytes) -> Pulse | None:
        return _decoded(self._opened(b"kvpulse-pulse", frame), Pulse)

    def request(self, nonce: bytes) -> bytes:
        return self._sealed(b"kvpulse-ask", nonce)

    def read_request(self, frame: bytes) -> bytes | None:
        """The nonce of a request for a snapshot."""
        nonce = self._opened(b"kvpulse-ask", frame)
        return nonce if nonce is not None and len(nonce) == NONCE_BYTES else None

    def snapshot_body(self, snapshot: Snapshot) -> bytes:
        """The part of the answer that is the same for everyone who asked."""
        return self._encoder.encode(snapshot)

    def snapshot(self, body: bytes, nonce: bytes) -> bytes:
        return self._sealed(b"kvpulse-snapshot", body, nonce)

    def read_snapshot(self, frame: bytes, nonce: bytes) -> Snapshot | None:
        return _decoded(self._opened(b"kvpulse-snapshot", frame, nonce), Snapshot)

    def _sealed(self, purpose: bytes, payload: bytes, nonce: bytes = b"") -> bytes:
        return self._signature(purpose, payload, nonce) + payload

    def _opened(self, purpose: bytes, frame: bytes, nonce: bytes = b"") -> bytes | None:
        payload = frame[SIGNATURE_BYTES:]
        genuine = hmac.compare_digest(frame[:SIGNATURE_BYTES], self._signature(purpose, payload, nonce))
        return payload if genuine else None

    def _signature(self, purpose: bytes, payload: bytes, nonce: bytes) -> bytes:
        keyed = blake2b(nonce, key=self._key, person=purpose, digest_size=SIGNATURE_BYTES)  # a nonce has one length
        keyed.update(payload)
        return keyed.digest()


def _decoded(payload: bytes | None, kind: type[_T]) -> _T | None:
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError:  # signed by us, but by another version
        return None
