"""vLLM's ZmqEventPublisher on the wire (vllm/distributed/kv_events.py), which loses messages when told to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from app.state.block_ledger import EventBatch
from deployments.engine_events import EventEndpoints


class FakeEventPublisher:
    """Publishes batches and answers replays, both only when called."""

    def __init__(self, endpoints: EventEndpoints, kept_steps: int = 1000) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._events: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        self._replay: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._events.bind(endpoints.events)
        self._replay.bind(endpoints.replay)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept_steps)
        self._sequence = 0
        self.replays = 0

    def has_new_subscriber(self) -> bool:
        """Since the last call. A reconnected one subscribes again when it next reads."""
        return bool(self._events.poll(0)) and bool(self._events.recv())

    def publish(self, batch: EventBatch, lost: bool = False) -> None:
        """Send one engine step, or lose it on the way: a replay has it still."""
        payload = msgspec.msgpack.encode(batch)
        self._kept.append((self._sequence, payload))
        if not lost:
            self._events.send_multipart((b"", self._sequence.to_bytes(8, "big"), payload))
        self._sequence += 1

    def answer_replay(self, wait_ms: int = 5000) -> bool:
        """Whether a replay was asked for, and so given."""
        if not self._replay.poll(wait_ms):
            return False
        sender, _, start = self._replay.recv_multipart()
        for sequence, payload in self._kept:
            if sequence >= int.from_bytes(start, "big"):
                self._replay.send_multipart((sender, b"", b"", sequence.to_bytes(8, "big"), payload))
        self._replay.send_multipart((sender, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))
        self.replays += 1
        return True

    def close(self) -> None:
        self._events.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()


@contextmanager
def event_endpoints() -> Iterator[EventEndpoints]:
    endpoints = EventEndpoints.private()
    yield endpoints
    endpoints.remove()


def patient(seconds: float = 10.0) -> Iterator[None]:
    """Loop with small pauses; a test that waits longer than this has failed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield
        time.sleep(0.002)
    raise AssertionError(f"did not happen within {seconds} s")
