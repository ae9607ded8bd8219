"""The engine's side of the pulse feed: follows the engine's KV events and tells every subscriber, in one thread."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from app.state.block_ledger import BlockLedger
from app.state.pulse import Pulse, ReplicaLoad
from app.state.pulse_source import PulseSource
from deployments.engine_events import EngineEventStream, EventEndpoints
from deployments.feed_thread import FeedThread
from deployments.pulse_messages import FeedEndpoint, PulseMessages

# Pulses that wait for a slow subscriber, here and in the kernel. Later ones pass it by, and it sees the gap.
MAX_QUEUED_PULSES = 64
SEND_BUFFER_BYTES = 1 << 18
# However many ask, a snapshot is made this often at most; all who wait then get the same.
SNAPSHOT_INTERVAL_S = 0.2
MAX_WAITING_REQUESTS = 256
MAX_REQUEST_BYTES = 256
MAX_QUEUED_SNAPSHOTS = 2


@dataclass(slots=True)
class PublisherCounts:
    """Since the start.

    Args:
        pulses: published.
        snapshots: sent.
        refused: requests for a snapshot that were not signed by the application, or too many.
        lost_streams: times that events of the engine were missing for good.
    """

    pulses: int = 0
    snapshots: int = 0
    refused: int = 0
    lost_streams: int = 0


class PulsePublisher:
    """Nothing that a subscriber does, or fails to do, delays this thread, and nothing in it delays the engine.

    Args:
        ledger: of the engine's cache. Belongs to the thread from now on.
        events: where the engine publishes its KV events.
        read_load: called in the thread, ten times per second; cheap, and safe there.
        messages: signs.
        host: address to bind to; the system chooses the ports.
    """

    def __init__(
        self,
        ledger: BlockLedger,
        events: EventEndpoints,
        read_load: Callable[[], ReplicaLoad],
        messages: PulseMessages,
        host: str,
    ) -> None:
        self.counts = PublisherCounts()
        self.ledger_counts = ledger.counts
        self._ledger = ledger
        self._messages = messages
        self._source = PulseSource(ledger, uuid.uuid4().hex, read_load)
        self._waiting: dict[bytes, bytes] = {}
        self._snapshot_at_s = float("-inf")
        self._context: zmq.Context[Any] = zmq.Context()
        self._pulses = self._bound(zmq.PUB, host, MAX_QUEUED_PULSES)
        self._requests = self._bound(zmq.ROUTER, host, MAX_QUEUED_SNAPSHOTS)
        self.endpoint = FeedEndpoint(
            _address(self._pulses), _address(self._requests), ledger.hasher.block_size, ledger.caches_prefixes
        )
        self._stream = EngineEventStream(self._context, events, time.monotonic)
        self._thread = FeedThread("pulse-publisher", self._step, self._ledger.forget_all, self._release)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def faults(self) -> int:
        return self._thread.faults

    def forget_all(self) -> None:
        """The engine has just reset its prefix cache; its own event of that waits for the next request."""
        as_of_s = time.time()

        def forget() -> None:
            self._ledger.forget_all(as_of_s)
            self._publish(self._source.pulse_now(time.monotonic()))

        self._thread.call(forget)

    def close(self) -> None:
        self._thread.close()

    def _step(self) -> None:
        self._wait(self._source.wake_in_s(time.monotonic()))
        for batch in self._stream.read():
            if batch is None:
                self.counts.lost_streams += 1
                self._ledger.forget_all()
            else:
                self._ledger.apply(batch)
        self._take_requests()
        try:
            self._speak(time.monotonic())
        except Exception:  # what is held is known all the same; without pulses the subscribers call it stale
            self._thread.note_fault("could not publish")

    def _wait(self, timeout_s: float) -> None:
        poller = zmq.Poller()
        for readable in (*self._stream.sockets, self._requests, self._thread.wakeup):
            poller.register(readable, zmq.POLLIN)
        poller.poll(math.ceil(timeout_s * 1000))

    def _take_requests(self) -> None:
        """Note who asks, the last request of each; as many per step as may wait, so that a flood costs no more."""
        for _ in range(MAX_WAITING_REQUESTS):
            if not self._requests.poll(0):
                return
            sender, *frames = self._requests.recv_multipart()
            nonce = self._messages.read_request(frames[0]) if len(frames) == 1 else None
            if nonce is None or (len(self._waiting) >= MAX_WAITING_REQUESTS and sender not in self._waiting):
                self.counts.refused += 1
            else:
                self._waiting[sender] = nonce

    def _speak(self, now_s: float) -> None:
        pulse = self._source.pulse_if_due(now_s)
        if self._waiting and now_s - self._snapshot_at_s >= SNAPSHOT_INTERVAL_S:
            self._publish(pulse or self._source.pulse_now(now_s))
            self._send_snapshots(now_s)
        elif pulse is not None:
            self._publish(pulse)

    def _publish(self, pulse: Pulse) -> None:
        self._pulses.send(self._messages.pulse(pulse))  # PUB never blocks: it drops
        self.counts.pulses += 1

    def _send_snapshots(self, now_s: float) -> None:
        self._snapshot_at_s = now_s
        body = self._messages.snapshot_body(self._source.snapshot())
        for sender, nonce in self._waiting.items():
            # ROUTER drops what is for someone who has gone or does not read.
            self._requests.send_multipart((sender, self._messages.snapshot(body, nonce)), zmq.DONTWAIT)
            self.counts.snapshots += 1
        self._waiting.clear()

    def _bound(self, kind: int, host: str, queued: int) -> zmq.Socket[bytes]:
        opened: zmq.Socket[bytes] = self._context.socket(kind)
        opened.set_hwm(queued)
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.SNDBUF, SEND_BUFFER_BYTES)
        opened.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        opened.setsockopt(zmq.IPV6, ":" in host)
        opened.bind(f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0")
        return opened

    def _release(self) -> None:
        self._stream.close()
        self._pulses.close()
        self._requests.close()
        self._context.term()


def _address(bound: zmq.Socket[bytes]) -> str:
    return bound.getsockopt_string(zmq.LAST_ENDPOINT)
