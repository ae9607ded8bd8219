"""The live page's events: one poll of the board per second, shared by all pages that are open at this ingress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from app.errors import UnavailableError
from deployments.board_client import BoardAwayError

logger = logging.getLogger("ray.serve")

POLL_S = 1.0
HEARTBEAT_S = 5.0
# A stopping ingress waits for its answers. A page's stream ends by itself now and then, and goes on wherever there is
# an ingress: with the id of its last event the page gets what it has missed.
STREAM_S = 30.0
MOST_QUEUED = 8

Update = Callable[[str | None], Awaitable[tuple[str, bytes]]]


def event(data: bytes, name: str = "pulse", event_id: str | None = None) -> bytes:
    """One server-sent event. `data` is JSON and so holds no line break."""
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id is not None else "")
    return head.encode() + b"data: " + data + b"\n\n"


class LiveFeed:
    """For one event loop.

    Args:
        update: asks the board for what follows an event id; raises BoardAwayError.
        settings: what the page has to know of the configuration, once per stream.
        max_listeners: streams at once.
        stream_s: how long one lasts at most.
    """

    def __init__(
        self,
        update: Update,
        settings: dict[str, Any],
        max_listeners: int,
        *,
        poll_s: float = POLL_S,
        heartbeat_s: float = HEARTBEAT_S,
        stream_s: float = STREAM_S,
    ) -> None:
        self._update = update
        self._settings = event(msgspec.json.encode(settings), "settings")
        self._max_listeners = max_listeners
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._stream_s = stream_s
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._last_id: str | None = None  # of what all listeners have been told

    def listen(self, last_event_id: str | None) -> AsyncIterator[bytes]:
        """The events of one page: settings, all that follows its last event, then one pulse per second.

        Raises:
            UnavailableError: too many listen.
        """
        if len(self._listeners) >= self._max_listeners:
            message = f"{self._max_listeners} pages are open at this ingress (live_page.max_listeners)"
            raise UnavailableError(message, code="too_many_listeners", retry_after_s=5.0)
        return self._events(last_event_id)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def close(self) -> None:
        """End all streams."""
        for queue in self._listeners:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(b": closing\n\n")
        self._listeners.clear()

    async def _events(self, last_event_id: str | None) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_QUEUED)
        self._listeners.add(queue)  # before anything is asked: what comes from now on is in the queue
        self._polling = self._polling or asyncio.create_task(self._poll())
        now, ends_s = asyncio.get_running_loop().time, asyncio.get_running_loop().time() + self._stream_s
        try:
            yield self._settings
            yield await self._missed(last_event_id)
            while now() < ends_s and (queue in self._listeners or not queue.empty()):
                try:
                    async with asyncio.timeout(min(ends_s - now(), self._heartbeat_s)):
                        told = await queue.get()
                except TimeoutError:
                    told = b": alive\n\n"
                yield told  # outside of the timeout, which would cancel whoever takes long to send this
        finally:
            self._listeners.discard(queue)

    async def _missed(self, last_event_id: str | None) -> bytes:
        try:
            event_id, data = await self._update(last_event_id)
        except BoardAwayError:
            return event(b"{}", "away")
        self._last_id = self._last_id or event_id
        return event(data, event_id=event_id)

    async def _poll(self) -> None:
        """While anyone listens. A page may get a tick twice, first with what it had missed: it knows its own ticks."""
        while self._listeners:
            await asyncio.sleep(self._poll_s)
            try:
                told = await self._next()
            except Exception:
                logger.exception("a poll of the board failed")
                continue
            for queue in tuple(self._listeners):
                try:
                    queue.put_nowait(told)
                except asyncio.QueueFull:  # it reads too slowly; it will come back for what it has missed
                    self._listeners.discard(queue)
        self._polling = self._last_id = None

    async def _next(self) -> bytes:
        try:
            self._last_id, data = await self._update(self._last_id)
        except BoardAwayError:
            return event(b"{}", "away")
        return event(data, event_id=self._last_id)
