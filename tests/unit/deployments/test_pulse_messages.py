"""Only what the application's key signed, for that very purpose, is read."""

from __future__ import annotations

import pytest

from app.state.pulse import CacheChange, Pulse, ReplicaLoad, Snapshot
from deployments.pulse_messages import NONCE_BYTES, PulseMessages

OURS = PulseMessages(b"our key")
PULSE = Pulse("one", 1, CacheChange(stored=(1, (1 << 60) - 1), removed=(2,)), ReplicaLoad(kv_usage_ratio=0.5))
SNAPSHOT = Snapshot("one", 1, bytes(16), ReplicaLoad())
NONCE = bytes(range(NONCE_BYTES))


def test_messages_are_read_as_they_were_written() -> None:
    assert OURS.read_pulse(OURS.pulse(PULSE)) == PULSE
    assert OURS.read_request(OURS.request(NONCE)) == NONCE
    assert OURS.read_snapshot(OURS.snapshot(OURS.snapshot_body(SNAPSHOT), NONCE), NONCE) == SNAPSHOT


def test_every_changed_byte_is_noticed() -> None:
    frame = OURS.pulse(PULSE)
    for position in range(len(frame)):
        tampered = bytearray(frame)
        tampered[position] ^= 1
        assert OURS.read_pulse(bytes(tampered)) is None


@pytest.mark.parametrize("frame", [b"", b"short", bytes(16)])
def test_what_is_no_message_is_not_read(frame: bytes) -> None:
    assert OURS.read_pulse(frame) is None
    assert OURS.read_request(frame) is None
    assert OURS.read_snapshot(frame, NONCE) is None


def test_another_application_is_not_read() -> None:
    assert PulseMessages(b"their key").read_pulse(OURS.pulse(PULSE)) is None
    assert PulseMessages(b"their key").read_request(OURS.request(NONCE)) is None


def test_a_snapshot_answers_its_own_request_only() -> None:
    frame = OURS.snapshot(OURS.snapshot_body(SNAPSHOT), NONCE)
    assert OURS.read_snapshot(frame, bytes(NONCE_BYTES)) is None


def test_a_message_does_not_pass_for_one_of_another_kind() -> None:
    assert OURS.read_request(OURS.pulse(PULSE)) is None
    assert OURS.read_pulse(OURS.snapshot(OURS.snapshot_body(SNAPSHOT), NONCE)) is None


def test_a_signed_message_of_another_version_is_dropped() -> None:
    assert OURS.read_snapshot(OURS.snapshot(b"\xc1", NONCE), NONCE) is None


def test_prompts_cannot_be_in_a_message() -> None:
    """Numbers and an incarnation is all there is room for."""
    fields = {*Pulse.__struct_fields__, *CacheChange.__struct_fields__, *Snapshot.__struct_fields__}
    assert fields == {"incarnation", "sequence", "change", "load", "cleared", "removed", "stored", "hashes"}
