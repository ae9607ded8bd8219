"""The engine's HTTP side: vLLM's own ASGI app behind a bearer token, each answer tied to the lease that pays for it."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.answer_usage import measured_usage

LEASE_HEADER = "x-kvpulse-lease"
ENGINE_DEAD_HEADER = "x-kvpulse-engine-dead"

# A lease whose HTTP request has not come by then belongs to an ingress that died in between.
HTTP_ARRIVAL_S = 10.0
# Answers that ended before their companion call arrived; more than a replica can have in flight.
MAX_UNATTENDED = 16_384


@dataclass(eq=False, slots=True)
class _Answer:
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    used_tokens: int | None = None


def without_middleware(app: Starlette) -> Starlette:
    """vLLM's app for callers who are known: its middleware serves browsers, keys of other servers (VLLM_API_KEY) and
    metrics of HTTP routes, and each costs every chunk of a stream. A stack of them that has been built is built anew.
    """
    app.user_middleware.clear()
    app.middleware_stack = None
    return app


class LeasedAnswers:
    """ASGI middleware: refuses strangers, and lets `attend` wait for, or cancel, the answer of a lease.

    Args:
        app: vLLM's OpenAI app.
        token: what `authorization: Bearer` must carry.
        engine_dead: whether the engine behind the app is beyond use; told to the ingress in a header of error answers.
    """

    def __init__(self, app: ASGIApp, token: str, engine_dead: Callable[[], bool]) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._engine_dead = engine_dead
        self._answers: dict[str, _Answer] = {}

    @property
    def running(self) -> int:
        """Answers that have started and not ended."""
        return sum(answer.started.is_set() and not answer.ended.is_set() for answer in self._answers.values())

    async def attend(self, lease_id: str) -> int | None:
        """Return when the lease's answer has ended; abandon the answer when this call is cancelled.

        Returns:
            The tokens that the engine computed or took from its cache for it; None when there is no telling.
        """
        answer = self._answers.setdefault(lease_id, _Answer())
        try:
            async with asyncio.timeout(HTTP_ARRIVAL_S):
                await answer.started.wait()
            await answer.ended.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            answer.abandoned.set()
            raise
        finally:
            self._answers.pop(lease_id, None)
        return answer.used_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await _refuse(send)
            return
        lease_id = headers.get(LEASE_HEADER.encode(), b"").decode("latin-1")
        answer = self._answers.setdefault(lease_id, _Answer()) if lease_id else _Answer()
        answer.started.set()
        with measured_usage() as usage:
            try:
                await self._app(scope, _until_abandoned(receive, answer.abandoned), self._marking(send))
            finally:
                answer.ended.set()
                self._forget_unattended()
                answer.used_tokens = usage.tokens

    def _marking(self, send: Send) -> Send:
        """`send`, which tells the ingress of a dead engine: by a header, or by breaking off an answer that has begun.

        vLLM would end such a stream like a complete one: with an error event, but with `[DONE]` after it.
        """

        streaming = False

        async def marking_send(message: Message) -> None:
            nonlocal streaming
            if message["type"] == "http.response.start":
                streaming = message["status"] < 500
                if not streaming and self._engine_dead():
                    message["headers"] = [*message.get("headers", ()), (ENGINE_DEAD_HEADER.encode(), b"1")]
            elif streaming and self._engine_dead():
                raise ConnectionAbortedError("the engine died in the middle of this answer")
            await send(message)

        return marking_send

    def _forget_unattended(self) -> None:
        """Bound what ended answers leave behind when their companion never comes."""
        while len(self._answers) > MAX_UNATTENDED:
            oldest = next((key for key, answer in self._answers.items() if answer.ended.is_set()), None)
            if oldest is None:
                return
            del self._answers[oldest]


def _until_abandoned(receive: Receive, abandoned: asyncio.Event) -> Receive:
    """`receive`, which reports a disconnect as soon as the answer is abandoned.

    vLLM's handlers abort their request when they read a disconnect. Cancelled from outside instead, they would leave
    it running: they wait for a task of their own, which nothing would cancel.
    """

    async def receive_or_leave() -> Message:
        message = asyncio.ensure_future(receive())
        leaving = asyncio.ensure_future(abandoned.wait())
        try:
            await asyncio.wait((message, leaving), return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if leaving.done() else await message
        finally:
            message.cancel()
            leaving.cancel()

    return receive_or_leave


async def _refuse(send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class PrivateServer:
    """A uvicorn server on a port that the system chooses, running in the caller's event loop."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        # With its protocol named: asyncio turns Nagle's delay off for such sockets only.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((host, 0))
        config = uvicorn.Config(
            app,
            log_level="critical",  # it calls every abandoned answer an error
            access_log=False,
            lifespan="on",
            # Longer than the ingress keeps idle connections, so that it never writes to one that closes under it.
            timeout_keep_alive=600,
        )
        self._server = uvicorn.Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        self._socket.listen(2048)
        # `_serve`, not `serve`: the latter takes over the process's signal handlers, which are Ray's.
        self._task = asyncio.create_task(self._server._serve([self._socket]))
        while not self._server.started:
            if self._task.done():
                raise RuntimeError("the engine's private HTTP server did not start") from self._task.exception()
            await asyncio.sleep(0.01)

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
