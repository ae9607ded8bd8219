"""The router's side of the pulse feed: one thread that keeps views in step with every engine replica of every path."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from app.state.pulse_follower import FollowerCounts, PulseFollower, ReplicaView
from deployments.feed_thread import FeedThread
from deployments.pulse_messages import NONCE_BYTES, FeedEndpoint, PulseMessages
from deployments.pulse_publisher import MAX_QUEUED_PULSES

SNAPSHOT_TIMEOUT_S = 1.0
MIN_REQUEST_INTERVAL_S = 0.1
# A million blocks in eight megabytes; more is no snapshot of ours.
MAX_MESSAGE_BYTES = 64 << 20
# ZMQ's own pings find out that a host has vanished without closing its connections.
PING_INTERVAL_S = 1.0
PING_TIMEOUT_S = 3.0
MAX_RECONNECT_INTERVAL_S = 2.0
# A look at hundreds of sockets costs about as much whether one is ready or twenty: let some gather.
GATHER_S = 0.01
LAGGING_WAIT_MS = 100
IDLE_WAIT_MS = 1000
WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(slots=True)
class SubscriberCounts:
    """Of all replicas together.

    Args:
        unsigned: messages dropped because the application's key did not sign them.
        requests: snapshots asked for.
        disconnects: connections lost.
        following: what the pulses told, see FollowerCounts.
    """

    unsigned: int = 0
    requests: int = 0
    disconnects: int = 0
    following: FollowerCounts = field(default_factory=FollowerCounts)


class PulseSubscriber:
    """Follows replicas from any thread; tells their views from its own. A replica is told to one view."""

    def __init__(self, messages: PulseMessages) -> None:
        self.counts = SubscriberCounts()
        self._messages = messages
        self._context: zmq.Context[Any] = zmq.Context()
        self._connections: dict[str, _Connection] = {}
        self._poller = zmq.Poller()
        self._readers: dict[Any, tuple[_Connection, Callable[[], None]]] = {}
        self._thread = FeedThread("pulse-subscriber", self._step, self._restart_all, self._release)
        self._poller.register(self._thread.wakeup, zmq.POLLIN)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def faults(self) -> int:
        return self._thread.faults

    def follow(self, replica_id: str, endpoint: FeedEndpoint, view: ReplicaView) -> None:
        """Keep `view` in step with a replica. Following it already at that endpoint, this does nothing."""
        self._thread.call(lambda: self._follow(replica_id, endpoint, view))

    def unfollow(self, replica_id: str) -> None:
        """The view hears at most of what had arrived when this was called."""
        self._thread.call(lambda: self._unfollow(replica_id))

    def close(self) -> None:
        self._thread.close()

    def _follow(self, replica_id: str, endpoint: FeedEndpoint, view: ReplicaView) -> None:
        known = self._connections.get(replica_id)
        if known is not None and known.endpoint == endpoint:
            return
        self._unfollow(replica_id)
        follower = PulseFollower(replica_id, view, self.counts.following)
        connection = _Connection(self._context, endpoint, follower, self._messages, self.counts)
        self._connections[replica_id] = connection
        self._watch(connection, connection.monitor, connection.read_monitor)
        self._watch(connection, connection.pulses, connection.read_pulses)

    def _unfollow(self, replica_id: str) -> None:
        connection = self._connections.pop(replica_id, None)
        if connection is not None:
            self._drop_answer(connection)
            self._unwatch(connection.monitor)
            self._unwatch(connection.pulses)
            connection.close()

    def _watch(self, connection: _Connection, readable: zmq.Socket[bytes], read: Callable[[], None]) -> None:
        self._poller.register(readable, zmq.POLLIN)
        self._readers[readable] = (connection, read)

    def _unwatch(self, readable: zmq.Socket[bytes]) -> None:
        self._poller.unregister(readable)
        del self._readers[readable]

    def _step(self) -> None:
        lagging = [connection for connection in self._connections.values() if connection.wants_snapshot]
        for connection in lagging:
            self._ask_in_time(connection, time.monotonic())
        for readable, _ in self._poller.poll(LAGGING_WAIT_MS if lagging else IDLE_WAIT_MS):
            if readable in self._readers:  # not the wake-up, and not closed a moment ago
                self._read(*self._readers[readable])
        time.sleep(GATHER_S)

    def _read(self, connection: _Connection, read: Callable[[], None]) -> None:
        """A view that fails costs its own replica a new snapshot and the others nothing."""
        try:
            read()
        except Exception:
            self._thread.note_fault(f"following {connection.follower.replica_id}")
            connection.follower.in_step = False
        if not connection.awaits_answer:
            self._drop_answer(connection)

    def _ask_in_time(self, connection: _Connection, now_s: float) -> None:
        waited_s = now_s - connection.asked_at_s
        if waited_s < (MIN_REQUEST_INTERVAL_S if connection.answer is None else SNAPSHOT_TIMEOUT_S):
            return
        self._drop_answer(connection)
        self._watch(connection, connection.ask(now_s), connection.read_answer)

    def _drop_answer(self, connection: _Connection) -> None:
        if connection.answer is not None:
            self._unwatch(connection.answer)
            connection.drop_answer()

    def _restart_all(self) -> None:
        for connection in self._connections.values():
            connection.follower.in_step = False

    def _release(self) -> None:
        for replica_id in list(self._connections):
            self._unfollow(replica_id)
        self._context.term()


class _Connection:
    """The sockets to one replica. A snapshot is asked for on a socket of its own, which closes with the answer."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: FeedEndpoint,
        follower: PulseFollower,
        messages: PulseMessages,
        counts: SubscriberCounts,
    ) -> None:
        self.endpoint = endpoint
        self.follower = follower
        self.answer: zmq.Socket[bytes] | None = None
        self.asked_at_s = float("-inf")
        self._context = context
        self._messages = messages
        self._counts = counts
        self._connected = False
        self._nonce = b""
        self.pulses = self._socket(zmq.SUB)
        self.pulses.subscribe(b"")
        self.monitor: zmq.Socket[bytes] = self.pulses.get_monitor_socket(WATCHED)
        self.pulses.connect(endpoint.pulses)

    @property
    def wants_snapshot(self) -> bool:
        return self._connected and not self.follower.in_step

    @property
    def awaits_answer(self) -> bool:
        return self.wants_snapshot and self._nonce != b""

    def ask(self, now_s: float) -> zmq.Socket[bytes]:
        """Request a snapshot; returns the socket that the answer comes on."""
        self.asked_at_s = now_s
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.answer = self._socket(zmq.DEALER)
        self.answer.connect(self.endpoint.snapshots)
        self.answer.send(self._messages.request(self._nonce))
        self._counts.requests += 1
        return self.answer

    def drop_answer(self) -> None:
        if self.answer is not None:
            self.answer.close()
            self.answer = None

    def read_monitor(self) -> None:
        for frames in _received(self.monitor):
            connected = parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._connected and not connected:
                self._counts.disconnects += 1
                self.follower.on_disconnected()
            self._connected = connected

    def read_pulses(self) -> None:
        for frames in _received(self.pulses):
            pulse = self._messages.read_pulse(frames[0]) if len(frames) == 1 else None
            if pulse is None:
                self._counts.unsigned += 1
            else:
                self.follower.on_pulse(pulse)

    def read_answer(self) -> None:
        for frames in _received(self.answer) if self.answer is not None else ():
            snapshot = self._messages.read_snapshot(frames[0], self._nonce) if len(frames) == 1 else None
            if snapshot is None:
                self._counts.unsigned += 1
            elif self.wants_snapshot:
                self.follower.on_snapshot(snapshot)
                self._nonce = b""  # answered, whether or not the pulses join on to it

    def close(self) -> None:
        self.drop_answer()
        self.pulses.disable_monitor()
        self.monitor.close(linger=0)
        self.pulses.close()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        opened: zmq.Socket[bytes] = self._context.socket(kind)
        opened.set_hwm(MAX_QUEUED_PULSES)
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        opened.setsockopt(zmq.IPV6, "[" in self.endpoint.pulses)
        opened.setsockopt(zmq.HEARTBEAT_IVL, int(PING_INTERVAL_S * 1000))
        opened.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(PING_TIMEOUT_S * 1000))
        opened.setsockopt(zmq.RECONNECT_IVL_MAX, int(MAX_RECONNECT_INTERVAL_S * 1000))
        return opened


def _received(readable: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """Every whole message that is there, but no more than may queue: other replicas wait."""
    for _ in range(MAX_QUEUED_PULSES):
        try:
            yield readable.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
