"""One answer from lease to release: what the client gets when engines answer, refuse, die, or the client leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.decisions.classifier import Classification
from app.errors import InvalidRequestError, TimeoutExceededError, UnavailableError, UpstreamError
from app.requests import Prompt, RequestFeatures, RequestPath
from deployments.answers import Dispatch, EngineResponse, Suspects, request_timeout_s
from deployments.forwarding import EngineConnections
from deployments.rendering import CHAT, RESPONSES, OpenAIRoute, Rendered
from tests.fakes import (
    FakeClock,
    FakeHandle,
    FakeMethod,
    FakeReplica,
    ServeApp,
    breaking_after,
    events,
    routed,
    silent_after,
    until,
)

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
    """Engines on loopback, one after the other in the order in which they are leased."""

    def __init__(self, method: FakeMethod, suspects: Suspects, route: OpenAIRoute, timeout_s: float | None) -> None:
        self.method, self.suspects, self.client = method, suspects, Client()
        self._dispatch = Dispatch(
            route=route,
            rendered=Rendered(RequestFeatures(3, 4), Prompt(3), {"model": "m"}),
            classification=Classification(RequestPath.HOT, "short_prompt_and_output"),
            handle=FakeHandle(method),
            routed=routed,
            connections=EngineConnections(30),
            suspects=suspects,
            lease_timeout_s=0.2,
            timeout_s=timeout_s,
            headers={"x-kvpulse-ignored": "priority"},
        )

    async def answer(self) -> None:
        await EngineResponse(self._dispatch)({"type": "http"}, self.client.receive, self.client.send)


async def setting(
    serve_app: ServeApp, *engines: ASGIApp, route: OpenAIRoute = CHAT, timeout_s: float | None = None
) -> Setting:
    replicas = [FakeReplica(f"r{i}", (await serve_app(engine)).address) for i, engine in enumerate(engines)]
    return Setting(FakeMethod(replicas), Suspects(clock=FakeClock()), route, timeout_s)


async def test_an_answer_carries_the_decision_in_its_headers(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({"text": "hello"}))
    await scene.answer()
    assert scene.client.status == 200
    assert scene.client.headers == {
        "content-type": "application/json",
        "x-kvpulse-path": "hot",
        "x-kvpulse-reason": "short_prompt_and_output",
        "x-kvpulse-replica": "r0",
        "x-kvpulse-routing": "fallback",
        "x-kvpulse-matched-tokens": "0",
        "x-kvpulse-ignored": "priority",
    }
    assert json.loads(scene.client.body) == {"text": "hello"}
    assert scene.method.log[-1] == "released r0"


async def test_a_stream_passes_through_and_is_not_cached(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, events("1", "2", "[DONE]"))
    await scene.answer()
    assert scene.client.body == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert scene.client.headers["cache-control"] == "no-cache"
    assert scene.client.sent[-1].get("more_body", False) is False


@pytest.mark.parametrize(
    "lost",
    [DEAD, Response("oops", 500), breaking_after(kind="text/event-stream"), events()],
    ids=["dead", "error", "breaks off", "empty stream"],
)
async def test_an_engine_lost_before_its_first_byte_is_replaced_once(serve_app: ServeApp, lost: ASGIApp) -> None:
    scene = await setting(serve_app, lost, JSONResponse({"text": "hello"}))
    await scene.answer()
    assert (scene.client.status, scene.client.headers["x-kvpulse-replica"]) == (200, "r1")
    assert scene.method.log.index("released r0") < scene.method.log.index("reserved r1")


async def test_two_lost_engines_are_the_end(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, DEAD, DEAD, JSONResponse({}))
    with pytest.raises(UpstreamError):
        await scene.answer()
    assert scene.client.sent == []
    assert scene.method.log[-1] == "released r1"


async def test_a_lost_engine_is_not_tried_again_although_it_is_the_only_one(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, DEAD)
    with pytest.raises(UnavailableError):
        await scene.answer()
    assert scene.method.log.count("reserved r0") == 1


async def test_the_next_requests_avoid_a_dead_engine_for_a_while(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, DEAD, JSONResponse({}))
    await scene.answer()
    await scene.answer()
    assert scene.method.log.count("reserved r0") == 1


async def test_an_engine_that_failed_one_request_is_not_suspect(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, Response("oops", 500), JSONResponse({}))
    await scene.answer()
    assert scene.suspects.current() == frozenset()


async def test_a_refusal_is_not_tried_elsewhere(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({"error": {"message": "no"}}, 400), JSONResponse({}))
    with pytest.raises(InvalidRequestError):
        await scene.answer()
    assert scene.method.log.count("reserved r1") == 0


async def test_a_broken_stream_ends_with_an_error_event_and_without_done(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, breaking_after(b"data: 1\n\n", kind="text/event-stream"), JSONResponse({}))
    await scene.answer()
    first, last, rest = scene.client.body.split(b"\n\n")
    assert (first, rest) == (b"data: 1", b"")
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
    assert scene.method.log.count("reserved r1") == 0


async def test_a_broken_response_stream_ends_with_an_event_of_its_own_kind(serve_app: ServeApp) -> None:
    broken = breaking_after(b"event: x\ndata: {}\n\n", kind="text/event-stream")
    scene = await setting(serve_app, broken, route=RESPONSES)
    await scene.answer()
    kind, data = scene.client.body.split(b"\n\n")[1].split(b"\n")
    assert kind == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))
    assert (error["type"], error["code"]) == ("error", "engine_failed")


@pytest.mark.parametrize("parts", [(), (b"data: 1\n\n",)], ids=["before the first byte", "within the stream"])
async def test_a_client_that_leaves_ends_the_engines_work_and_the_lease(
    serve_app: ServeApp, parts: tuple[bytes, ...]
) -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()
    silent = silent_after(*parts)

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.set()
        await silent(scope, receive, send)
        ended.set()

    scene = await setting(serve_app, engine)
    answering = asyncio.create_task(scene.answer())
    await (scene.client.got_bytes if parts else arrived).wait()
    scene.client.left.set()
    await answering
    await ended.wait()
    await until(lambda: scene.method.log[-1] == "released r0")


async def test_a_deadline_that_passes_before_the_first_byte_is_a_timeout(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, silent_after(), timeout_s=0.05)
    with pytest.raises(TimeoutExceededError):
        await scene.answer()
    assert scene.client.sent == []
    assert scene.method.log[-1] == "released r0"


async def test_a_deadline_that_passes_within_a_stream_ends_it_with_an_error_event(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, silent_after(b"data: 1\n\n"), timeout_s=0.5)
    await scene.answer()
    first, last, _ = scene.client.body.split(b"\n\n")
    assert first == b"data: 1"
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert scene.client.sent[-1].get("more_body", False) is False
    assert scene.method.log[-1] == "released r0"


@pytest.mark.parametrize("header", [None, "", "soon", "0", "-1", "nan", "inf"])
def test_what_is_no_time_is_no_deadline(header: str | None) -> None:
    assert request_timeout_s(header) is None


@pytest.mark.parametrize("header", ["0.1", "2", "30", "1e3"])
def test_our_deadline_comes_before_serves_own(header: str) -> None:
    deadline_s = request_timeout_s(header)
    assert deadline_s is not None
    assert 0 < deadline_s < float(header)


def test_a_suspect_is_forgotten_after_a_while() -> None:
    clock = FakeClock()
    suspects = Suspects(ttl_s=5, clock=clock)
    suspects.add("a")
    clock.advance(4)
    suspects.add("b")
    assert suspects.current() == {"a", "b"}
    clock.advance(1)
    assert suspects.current() == {"b"}
    clock.advance(4)
    assert suspects.current() == frozenset()
