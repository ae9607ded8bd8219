"""The KV events of the engine behind this process, in order, from vLLM's ZMQ publisher and its replay socket."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from app.state.block_ledger import EventBatch

# vLLM looks at its replay socket ten times per second, between other work.
REPLAY_TIMEOUT_S = 2.0
# What vLLM keeps for a replay, in engine steps; more than that need not be kept here either.
KEPT_STEPS = 10_000
_END_OF_REPLAY = -1


@dataclass(frozen=True, slots=True)
class EventEndpoints:
    """ZMQ addresses in a folder that only this user may enter: what crosses them are token ids, so prompts."""

    events: str
    replay: str

    @classmethod
    def private(cls) -> EventEndpoints:
        folder = tempfile.mkdtemp(prefix="kvpulse-")  # mode 0700
        return cls(f"ipc://{folder}/events", f"ipc://{folder}/replay")

    def config_fields(self) -> dict[str, Any]:
        """Keyword arguments of vLLM's KVEventsConfig."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.events,
            "replay_endpoint": self.replay,
            "buffer_steps": KEPT_STEPS,
        }

    def remove(self) -> None:
        """Delete the sockets and their folder."""
        folder = Path(self.events.removeprefix("ipc://")).parent
        for path in folder.glob("*"):
            path.unlink(missing_ok=True)
        folder.rmdir()


class EngineEventStream:
    """Yields every batch once and in order. For use by one thread.

    Args:
        context: whose sockets it opens.
        clock: monotonic seconds.
    """

    def __init__(self, context: zmq.Context[Any], endpoints: EventEndpoints, clock: Callable[[], float]) -> None:
        self._context = context
        self._endpoints = endpoints
        self._clock = clock
        self._decoder = msgspec.msgpack.Decoder(EventBatch)
        self._next = 0  # vLLM counts from 0 in every engine process
        self._last_ts = 0.0
        self._replay: zmq.Socket[bytes] | None = None
        self._replay_until_s = 0.0
        self._live: deque[tuple[int, bytes]] = deque(maxlen=KEPT_STEPS)  # what came while a replay is under way
        self._events: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self._events.set_hwm(KEPT_STEPS)
        self._events.subscribe(b"")
        self._events.connect(endpoints.events)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait for before `read`."""
        return [self._events] if self._replay is None else [self._events, self._replay]

    def read(self) -> Iterator[EventBatch | None]:
        """What has come, without waiting. None: something before the next batch is lost for good."""
        for _, sequence, payload in _received(self._events):
            yield from self._accept(int.from_bytes(sequence, "big"), payload)
        if self._replay is not None:
            yield from self._read_replay(self._replay)

    def close(self) -> None:
        self._events.close(linger=0)
        self._end_replay()

    def _accept(self, sequence: int, payload: bytes) -> Iterator[EventBatch | None]:
        if self._replay is not None:
            self._live.append((sequence, payload))
        elif sequence > self._next:
            self._live.append((sequence, payload))
            self._ask_replay()
        else:
            batch = self._decoder.decode(payload)
            if sequence < self._next:
                if batch.ts <= self._last_ts:
                    return  # the replay had it already
                yield None  # another engine process
            yield self._taken(sequence, batch)

    def _taken(self, sequence: int, batch: EventBatch) -> EventBatch:
        self._next = sequence + 1
        self._last_ts = batch.ts
        return batch

    def _ask_replay(self) -> None:
        self._replay = self._context.socket(zmq.DEALER)
        self._replay.set_hwm(0)
        self._replay.connect(self._endpoints.replay)
        self._replay.send_multipart((b"", self._next.to_bytes(8, "big")))
        self._replay_until_s = self._clock() + REPLAY_TIMEOUT_S

    def _read_replay(self, replay: zmq.Socket[bytes]) -> Iterator[EventBatch | None]:
        ended = self._clock() >= self._replay_until_s
        for _, _, raw_sequence, payload in _received(replay):
            sequence = int.from_bytes(raw_sequence, "big", signed=True)
            if sequence == _END_OF_REPLAY:
                ended = True
                break
            yield from self._in_order(sequence, payload)
        if ended:
            self._end_replay()
            while self._live:
                yield from self._in_order(*self._live.popleft())

    def _in_order(self, sequence: int, payload: bytes) -> Iterator[EventBatch | None]:
        """A batch that nothing before it can come after any more."""
        if sequence < self._next:
            return
        if sequence > self._next:
            yield None
        yield self._taken(sequence, self._decoder.decode(payload))

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close(linger=0)
            self._replay = None


def _received(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """Every whole message that is there."""
    while socket.poll(0):
        yield socket.recv_multipart()
