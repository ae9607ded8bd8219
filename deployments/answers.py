"""The answer to one generating request, as an ASGI response: lease, forward, retry once, release."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.decisions.classifier import Classification
from app.errors import UpstreamError
from deployments.forwarding import EngineAnswer, EngineConnections, EngineLostError, StreamBrokenError
from deployments.leases import Lease
from deployments.rendering import RESPONSES, OpenAIRoute, Rendered

logger = logging.getLogger("ray.serve")

ATTEMPTS = 2


class Suspects:
    """Replicas that failed a moment ago, to be avoided until Serve has noticed too.

    Args:
        ttl_s: how long a replica stays suspect.
        clock: monotonic seconds.
    """

    def __init__(self, ttl_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._until: dict[str, float] = {}

    def add(self, replica_id: str) -> None:
        self._until[replica_id] = self._clock() + self._ttl_s

    def current(self) -> frozenset[str]:
        now = self._clock()
        self._until = {replica: until for replica, until in self._until.items() if until > now}
        return frozenset(self._until)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Everything that answering one request needs."""

    route: OpenAIRoute
    rendered: Rendered
    classification: Classification
    handle: Any
    connections: EngineConnections
    suspects: Suspects
    lease_timeout_s: float
    headers: dict[str, str]


class EngineResponse(Response):
    """Streams an engine's answer. Until its first byte is sent, errors are raised (and answered in OpenAI's shape)."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.background = None
        self._dispatch = dispatch
        self._body = msgspec.json.encode(dispatch.rendered.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_client_gone(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            # Harmless when it has ended. Its lease is released by a task that this does not reach.
            cancelled = answering.cancel()
        if not cancelled:
            answering.result()

    async def _answer(self, send: Send) -> None:
        failed: set[str] = set()
        lost: EngineLostError | None = None
        for _ in range(ATTEMPTS):
            excluded = failed | self._dispatch.suspects.current()
            path = self._dispatch.classification.path
            async with Lease(self._dispatch.handle, path, excluded, self._dispatch.lease_timeout_s) as lease:
                try:
                    await self._forward(lease, send)
                    return
                except EngineLostError as error:
                    lost = error
                    failed.add(lease.replica_id)
                    if error.suspect:
                        self._dispatch.suspects.add(lease.replica_id)
                    logger.warning("replica %s lost before its first byte: %s", lease.replica_id, error)
        raise UpstreamError(f"{ATTEMPTS} engine replicas failed to answer; the last one: {lost}", retry_after_s=1.0)

    async def _forward(self, lease: Lease, send: Send) -> None:
        response, answer = await self._dispatch.connections.open(lease, self._dispatch.route.url, self._body)
        try:
            await send(self._start(lease, answer))
            await self._send_chunks(answer, send)
        finally:
            # Closes the connection unless the answer is complete: that is what aborts the engine's work.
            if not response.content.at_eof():
                response.close()
            response.release()

    async def _send_chunks(self, answer: EngineAnswer, send: Send) -> None:
        try:
            async for chunk in answer.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except StreamBrokenError as error:
            logger.warning("a stream broke: %s", error)
            await send({"type": "http.response.body", "body": self._error_event(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _start(self, lease: Lease, answer: EngineAnswer) -> dict[str, Any]:
        headers = {
            "content-type": answer.content_type,
            "x-kvpulse-path": self._dispatch.classification.path,
            "x-kvpulse-reason": self._dispatch.classification.reason,
            "x-kvpulse-replica": lease.replica_id,
            **self._dispatch.headers,
        }
        if answer.content_type.startswith("text/event-stream"):
            headers["cache-control"] = "no-cache"
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": answer.status, "headers": raw}

    def _error_event(self) -> bytes:
        """The last event of a broken stream. No `[DONE]` follows: the answer is not complete."""
        body = UpstreamError("the engine went away in the middle of this answer; send the request again").body()
        if self._dispatch.route == RESPONSES:
            error = {"type": "error", "sequence_number": 0, **body["error"]}
            return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"
        return b"data: " + json.dumps(body).encode() + b"\n\n"


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
