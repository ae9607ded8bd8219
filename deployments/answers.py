"""The answer to one admitted request, as an ASGI response: wait, lease, forward, retry once, release."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.errors import (
    ApiError,
    InvalidRequestError,
    NotFoundError,
    TimeoutExceededError,
    UnavailableError,
    UpstreamError,
)
from app.requests import Outcome, RequestPath
from deployments.admitted import Admitted
from deployments.engine_errors import EngineLostError, StreamBrokenError
from deployments.forwarding import EngineAnswer, EngineConnections
from deployments.incoming import TIMEOUT_HEADER
from deployments.leases import Lease
from deployments.refusals import no_room_in_time
from deployments.rendering import RESPONSES, OpenAIRoute
from deployments.request_record import Observer, RequestRecord, log_request

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
    """Everything that answering one request needs.

    Args:
        admitted: closed when the answer has ended, however it did.
        body: for these engines.
        lease: one attempt at a replica of these engines, given the unique ids of those to avoid.
        timeout_s: the client's own deadline.
        arrived_s: when the request came, by `clock`.
        observe: is told at the end what became of it.
        clock: monotonic seconds.
        trace_headers: go to the engine with the request.
    """

    route: OpenAIRoute
    admitted: Admitted
    body: Callable[[RequestPath], dict[str, Any]]
    lease: Callable[[RequestPath, frozenset[str]], Lease]
    connections: EngineConnections
    suspects: Suspects
    timeout_s: float | None
    arrived_s: float
    observe: Observer = log_request
    clock: Callable[[], float] = time.monotonic
    trace_headers: Mapping[str, str] = field(default_factory=dict)


class EngineResponse(Response):
    """Streams an engine's answer. Until its first byte is sent, errors are raised (and answered in OpenAI's shape)."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.background = None
        self._dispatch = dispatch
        self._admitted = dispatch.admitted
        self._started = False
        self._complete = False
        self._lost_engine = False
        self._lease: Lease | None = None
        self._first_token_s: float | None = None
        self._error: ApiError | None = None  # what ended the answer before its time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer_or_end(receive, send)
        except ApiError as error:
            error.tell(self._admitted.headers())
            raise

    async def _answer_or_end(self, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        answering.add_done_callback(self._close_books)  # however it ends, after its lease
        leaving = asyncio.create_task(_client_gone(receive))
        self._admitted.on_abort = partial(self._abort, answering)
        try:
            done, _ = await asyncio.wait(
                (answering, leaving), timeout=self._dispatch.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._abort(answering, self._timed_out())
        finally:
            leaving.cancel()
            # Nobody waits for it. Its lease is released by a task that this does not reach. Servers also say that a
            # client has left when it has got everything: then the lease ends in its own time and tells what it cost.
            abandoned = self._complete or (self._error is None and answering.cancel())
        if abandoned:
            return
        if not answering.done():
            await asyncio.wait((answering,))
        if not answering.cancelled():
            answering.result()
        elif self._error is not None:
            await self._end_early(self._error, send)

    def _abort(self, answering: asyncio.Task[None], error: ApiError) -> None:
        if self._error is None and not self._complete and answering.cancel():
            self._error = error

    def _timed_out(self) -> TimeoutExceededError:
        if not self._admitted.started:
            return no_room_in_time()
        return TimeoutExceededError(f"no complete answer within the request's own {TIMEOUT_HEADER}")

    async def _end_early(self, error: ApiError, send: Send) -> None:
        if not self._started:
            raise error
        await send({"type": "http.response.body", "body": self._error_event(error), "more_body": False})

    def _close_books(self, answering: asyncio.Task[None]) -> None:
        """The one place where whatever the request held is given back."""
        failure = None if answering.cancelled() else answering.exception()
        error = failure if isinstance(failure, ApiError) else self._error
        outcome = self._outcome(answering.cancelled(), failure)
        used_tokens = None if self._lease is None else self._lease.used_tokens
        # Of what an engine failed to begin, the key pays nothing.
        served = self._started or (used_tokens is not None and outcome is not Outcome.ENGINE_FAILED)
        self._admitted.close(outcome, used_tokens, served, error)
        self._dispatch.observe(self._record(_told(outcome, error, failure), used_tokens))

    def _record(self, outcome: str, used_tokens: int | None) -> RequestRecord:
        admitted, lease, arrived_s = self._admitted, self._lease, self._dispatch.arrived_s
        return RequestRecord(
            admitted.triaged,
            outcome,
            admitted.engines,
            admitted.decision,
            routing=None if lease is None else lease.decision,
            replica="" if lease is None else lease.replica_id,
            duration_s=self._dispatch.clock() - arrived_s,
            ttft_s=None if self._first_token_s is None else self._first_token_s - arrived_s,
            waited_s=admitted.waited_s,
            used_tokens=used_tokens,
        )

    def _outcome(self, cancelled: bool, failure: BaseException | None) -> Outcome:
        """A stream that broke is no failure of the path's engines: one dead replica may break a hundred at once, and
        whether the others live is seen by the requests that come next.
        """
        if isinstance(failure, UpstreamError) or (self._lost_engine and isinstance(failure, UnavailableError)):
            return Outcome.ENGINE_FAILED
        if isinstance(failure, InvalidRequestError | NotFoundError):
            return Outcome.CLIENT_ERROR
        return Outcome.CANCELLED if cancelled or failure is not None else Outcome.ANSWERED

    async def _answer(self, send: Send) -> None:
        engines = await self._admitted.slot()
        self._body = msgspec.json.encode(self._dispatch.body(engines))
        failed: set[str] = set()
        lost: EngineLostError | None = None
        for _ in range(ATTEMPTS):
            lease = self._lease = self._dispatch.lease(engines, frozenset(failed | self._dispatch.suspects.current()))
            try:
                async with lease:
                    await self._forward(lease, send)
                    return
            except EngineLostError as error:
                lost = error
                self._lost_engine = True
                failed.add(lease.replica_id)
                if error.suspect:
                    self._dispatch.suspects.add(lease.replica_id)
                logger.warning("replica %s lost before its first byte: %s", lease.replica_id, error)
        raise UpstreamError(f"{ATTEMPTS} engine replicas failed to answer; the last one: {lost}", retry_after_s=1.0)

    async def _forward(self, lease: Lease, send: Send) -> None:
        response, answer = await self._open(lease)
        try:
            self._started = True
            if answer.streamed and self._dispatch.route != RESPONSES:  # whose first events come before the first token
                self._first_token_s = self._dispatch.clock()
                self._admitted.first_token()
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
        dispatch = self._dispatch
        return await dispatch.connections.open(lease, dispatch.route.url, self._body, dispatch.trace_headers)

    async def _send_chunks(self, answer: EngineAnswer, send: Send) -> None:
        try:
            async for chunk in answer.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except StreamBrokenError as error:
            logger.warning("a stream broke: %s", error)
            self._error = UpstreamError("the engine went away in the middle of this answer; send the request again")
            await send({"type": "http.response.body", "body": self._error_event(self._error), "more_body": True})
        self._complete = True
        await send({"type": "http.response.body", "body": b""})

    def _start(self, lease: Lease, answer: EngineAnswer) -> dict[str, Any]:
        headers = {
            "content-type": answer.content_type,
            "x-kvpulse-replica": lease.replica_id,
            "x-kvpulse-routing": lease.decision.reason,
            "x-kvpulse-matched-tokens": str(lease.decision.matched_tokens),
            **self._admitted.headers(),
        }
        if answer.streamed:
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


def _told(outcome: Outcome, error: ApiError | None, failure: BaseException | None) -> str:
    """What the client was told: not every error has a code, and an unexpected one is no leaving client."""
    if error is not None:
        return error.code or error.error_type
    return outcome if failure is None else "internal_error"


def _abandon(connecting: asyncio.Task[tuple[aiohttp.ClientResponse, EngineAnswer]]) -> None:
    """Close what it has opened, or will not have."""
    if not connecting.cancel() and not connecting.cancelled() and connecting.exception() is None:
        connecting.result()[0].close()


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
