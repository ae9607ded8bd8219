"""One answer to one client: engines on loopback behind a gate with one slot."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.requests import Prompt, RequestFeatures, RequestPath
from deployments.admitted import Admitted
from deployments.answers import Dispatch, EngineResponse, Suspects
from deployments.forwarding import EngineConnections
from deployments.leases import Lease
from deployments.rendering import CHAT, OpenAIRoute, Rendered
from deployments.request_record import RequestRecord
from tests.fakes import (
    FakeClock,
    FakeHandle,
    FakeMethod,
    FakeReplica,
    ServeApp,
    routed,
    silent_after,
    until,
)
from tests.gates import HOT, Door, client_with

DEAD = Response("dead", 500, {"x-kvpulse-engine-dead": "1"})


class Client:
    """The ASGI side of one client."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.got_bytes = asyncio.Event()
        self.left = asyncio.Event()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.got_bytes.set()
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.left.set()  # as servers do: after a complete answer there is nobody left to listen

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


class Setting:
    """Engines on loopback, one after the other in the order in which they are leased, behind a gate with one slot."""

    def __init__(self, method: FakeMethod, suspects: Suspects, route: OpenAIRoute, timeout_s: float | None) -> None:
        self.method, self.suspects, self.client = method, suspects, Client()
        self.door = Door(slots=1, breaker={"failures": 1, "abort_after_s": 1})
        self.leased: list[RequestPath] = []
        self.records: list[RequestRecord] = []
        self._route, self._timeout_s = route, timeout_s

    def admit(self, path: RequestPath = HOT, **given: Any) -> Admitted:
        told = {"x-kvpulse-ignored": "priority"}
        return self.door.admit(path, client_with(tokens_per_minute=1000), self._timeout_s, told, **given)

    async def answer(self, admitted: Admitted | None = None) -> None:
        rendered = Rendered(RequestFeatures(10, 10), Prompt(10), {"model": "m", "max_tokens": 10})
        admitted = admitted or self.admit()

        def lease(engines: RequestPath, excluded: frozenset[str]) -> Lease:
            self.leased.append(engines)
            return Lease(FakeHandle(self.method), engines, routed(excluded), 0.2)  # type: ignore[arg-type]  # a stand-in

        def body(engines: RequestPath) -> dict[str, Any]:
            return rendered.engine_body(self._route, 50, admitted.decision.output_cap_tokens)

        clock = self.door.clock
        dispatch = Dispatch(
            self._route,
            admitted,
            body,
            lease,
            EngineConnections(30),
            self.suspects,
            self._timeout_s,
            arrived_s=clock() - 0.5,
            observe=self.records.append,
            clock=clock,
        )
        await EngineResponse(dispatch)({"type": "http"}, self.client.receive, self.client.send)

    async def released(self) -> None:
        """The lease has ended, and all that admission had booked."""
        await until(lambda: self.door.empty and (not self.method.log or self.method.log[-1].startswith("released")))

    @property
    def remaining_tokens(self) -> int:
        charge = self.door.quotas.charge("someone", client_with(tokens_per_minute=1000).quota, 0)
        charge.refund()
        assert charge.decision.tokens is not None
        return charge.decision.tokens.remaining


async def setting(
    serve_app: ServeApp,
    *engines: ASGIApp,
    route: OpenAIRoute = CHAT,
    timeout_s: float | None = None,
    full: Collection[str] = (),
    used_tokens: int | None = None,
) -> Setting:
    replicas = [FakeReplica(f"r{i}", (await serve_app(engine)).address) for i, engine in enumerate(engines)]
    method = FakeMethod(replicas, lambda _, companion: companion.ended.set_result(used_tokens), full)
    return Setting(method, Suspects(clock=FakeClock()), route, timeout_s)


class NoticingEngine:
    """Sends the parts, then nothing more until it is left."""

    def __init__(self, *parts: bytes) -> None:
        self.arrived, self.ended = asyncio.Event(), asyncio.Event()
        self._silent = silent_after(*parts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.arrived.set()
        await self._silent(scope, receive, send)
        self.ended.set()
