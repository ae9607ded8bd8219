"""The answer to one generating request, as an ASGI response: lease, forward, retry once, release."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.decisions.classifier import Classification
from app.errors import ApiError, TimeoutExceededError, UpstreamError
from deployments.engine_errors import EngineLostError, StreamBrokenError
from deployments.forwarding import EngineAnswer, EngineConnections
from deployments.leases import Lease
from deployments.rendering import RESPONSES, OpenAIRoute, Rendered
from deployments.routed_request import RoutedRequest

logger = logging.getLogger("ray.serve")

ATTEMPTS = 2
TIMEOUT_HEADER = "x-request-timeout-seconds"
# Serve heeds the same header and would answer in plain text: this ends the request just before it does.
BEFORE_SERVE_S = 0.25


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
    """Everything that answering one request needs.

    Args:
        routed: one attempt at a replica, given the unique ids of those to avoid.
    """

    route: OpenAIRoute
    rendered: Rendered
    classification: Classification
    handle: Any
    routed: Callable[[frozenset[str]], RoutedRequest]
    connections: EngineConnections
    suspects: Suspects
    lease_timeout_s: float
    timeout_s: float | None
    headers: dict[str, str]


def request_timeout_s(header: str | None) -> float | None:
    """The client's deadline from `x-request-timeout-seconds`. Like Serve: none, or not above 0, is no deadline."""
    try:
        wished = float(header) if header is not None else 0.0
    except ValueError:
        return None
    return max(wished - BEFORE_SERVE_S, wished / 2) if 0 < wished < float("inf") else None


class EngineResponse(Response):
    """Streams an engine's answer. Until its first byte is sent, errors are raised (and answered in OpenAI's shape)."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.background = None
        self._dispatch = dispatch
        self._started = False
        self._body = msgspec.json.encode(dispatch.rendered.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_client_gone(receive))
        try:
            done, _ = await asyncio.wait(
                (answering, leaving), timeout=self._dispatch.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            leaving.cancel()
            # Harmless when it has ended. Its lease is released by a task that this does not reach.
            cancelled = answering.cancel()
        if not cancelled:
            answering.result()
        elif not done:
            await asyncio.wait((answering,))
            await self._time_out(send)

    async def _time_out(self, send: Send) -> None:
        error = TimeoutExceededError(f"no complete answer within the request's own {TIMEOUT_HEADER}")
        if not self._started:
            raise error
        await send({"type": "http.response.body", "body": self._error_event(error), "more_body": False})

    async def _answer(self, send: Send) -> None:
        failed: set[str] = set()
        lost: EngineLostError | None = None
        for _ in range(ATTEMPTS):
            routed = self._dispatch.routed(frozenset(failed | self._dispatch.suspects.current()))
            path = self._dispatch.classification.path
            lease = Lease(self._dispatch.handle, path, routed, self._dispatch.lease_timeout_s)
            try:
                async with lease:
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
        response, answer = await self._open(lease)
        try:
            self._started = True
            await send(self._start(lease, answer))
            await self._send_chunks(answer, send)
        finally:
            # Closes the connection unless the answer is complete: that is what aborts the engine's work.
            if not response.content.at_eof():
                response.close()
            response.release()

    async def _open(self, lease: Lease) -> tuple[aiohttp.ClientResponse, EngineAnswer]:
        """Ask the replica that was chosen while its slot is being reserved, and again if the slot is elsewhere."""
        asked = lease.replica_id
        connecting = asyncio.create_task(self._connect(lease))
        try:
            if await lease.holds(asked):
                return await connecting
        except BaseException:
            _abandon(connecting)
            raise
        _abandon(connecting)
        return await self._connect(lease)

    async def _connect(self, lease: Lease) -> tuple[aiohttp.ClientResponse, EngineAnswer]:
        return await self._dispatch.connections.open(lease, self._dispatch.route.url, self._body)

    async def _send_chunks(self, answer: EngineAnswer, send: Send) -> None:
        try:
            async for chunk in answer.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except StreamBrokenError as error:
            logger.warning("a stream broke: %s", error)
            gone = UpstreamError("the engine went away in the middle of this answer; send the request again")
            await send({"type": "http.response.body", "body": self._error_event(gone), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _start(self, lease: Lease, answer: EngineAnswer) -> dict[str, Any]:
        headers = {
            "content-type": answer.content_type,
            "x-kvpulse-path": self._dispatch.classification.path,
            "x-kvpulse-reason": self._dispatch.classification.reason,
            "x-kvpulse-replica": lease.replica_id,
            "x-kvpulse-routing": lease.decision.reason,
            "x-kvpulse-matched-tokens": str(lease.decision.matched_tokens),
            **self._dispatch.headers,
        }
        if answer.content_type.startswith("text/event-stream"):
            headers["cache-control"] = "no-cache"
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": answer.status, "headers": raw}

    def _error_event(self, reason: ApiError) -> bytes:
        """The last event of a broken stream. No `[DONE]` follows: the answer is not complete."""
        body = reason.body()
        if self._dispatch.route == RESPONSES:
            error = {**body["error"], "type": "error", "sequence_number": 0}
            return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"
        return b"data: " + json.dumps(body).encode() + b"\n\n"


def _abandon(connecting: asyncio.Task[tuple[aiohttp.ClientResponse, EngineAnswer]]) -> None:
    """Close what it has opened, or will not have."""
    if not connecting.cancel() and not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].close()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
