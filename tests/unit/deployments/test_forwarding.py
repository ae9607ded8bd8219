"""The hop to an engine tells apart: an answer, a refusal, a lost engine, and a stream that breaks."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, InvalidRequestError, NotFoundError, UpstreamError
from deployments.forwarding import EngineAnswer, EngineConnections, EngineLostError, StreamBrokenError
from deployments.private_server import ENGINE_DEAD_HEADER, LEASE_HEADER
from tests.fakes import ServeApp, breaking_after, events, silent_after


class Address:
    """The part of a lease that the hop reads."""

    id, token, replica_id = "lease-1", "secret", "replica-1"

    def __init__(self, address: str) -> None:
        self.address = address


@asynccontextmanager
async def opened(serve_app: ServeApp, app: ASGIApp, silence_timeout_s: float = 30.0) -> AsyncIterator[EngineAnswer]:
    """An answer of which the first bytes have come."""
    server = await serve_app(app)
    response, answer = await EngineConnections(silence_timeout_s).open(_lease(server.address), "/v1/x", b"{}")
    try:
        yield answer
    finally:
        response.close()


async def ask(serve_app: ServeApp, app: ASGIApp, silence_timeout_s: float = 30.0) -> tuple[int, str, bytes]:
    """Status, content type and all bytes of one answer."""
    async with opened(serve_app, app, silence_timeout_s) as answer:
        return answer.status, answer.content_type, b"".join([chunk async for chunk in answer.chunks])


def _lease(address: str) -> Any:
    return Address(address)


async def test_an_answer_comes_as_it_is(serve_app: ServeApp) -> None:
    status, kind, body = await ask(serve_app, JSONResponse({"text": "hello"}))
    assert (status, kind, json.loads(body)) == (200, "application/json", {"text": "hello"})


async def test_a_stream_comes_as_it_is(serve_app: ServeApp) -> None:
    status, kind, body = await ask(serve_app, events('{"a": 1}', '{"a": 2}', "[DONE]"))
    assert (status, kind.partition(";")[0]) == (200, "text/event-stream")
    assert body == b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'


async def test_the_engine_gets_the_allowed_headers_and_no_others(serve_app: ServeApp) -> None:
    seen: dict[str, str] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(Request(scope).headers)
        await JSONResponse({})(scope, receive, send)

    await ask(serve_app, app)
    by_http = {"host", "accept", "accept-encoding", "user-agent", "content-length"}
    assert set(seen) - by_http == {"authorization", "content-type", LEASE_HEADER, "x-request-id"}
    assert (seen["authorization"], seen[LEASE_HEADER]) == ("Bearer secret", "lease-1")


async def test_the_first_bytes_do_not_wait_for_the_rest(serve_app: ServeApp) -> None:
    may_go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        await may_go_on.wait()
        yield "data: 2\n\n"

    async with opened(serve_app, StreamingResponse(slowly(), media_type="text/event-stream")) as answer:
        assert await anext(answer.chunks) == b"data: 1\n\n"
        may_go_on.set()
        assert await anext(answer.chunks) == b"data: 2\n\n"


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequestError), (404, NotFoundError), (422, InvalidRequestError)]
)
async def test_a_refusal_keeps_its_status_and_field(serve_app: ServeApp, status: int, kind: type[ApiError]) -> None:
    body = {"error": {"message": "no such value", "type": "BadRequest", "param": "top_p", "code": status}}
    with pytest.raises(kind, match="no such value") as refused:
        await ask(serve_app, JSONResponse(body, status))
    assert (refused.value.status, refused.value.param) == (status, "top_p")


async def test_a_refusal_in_a_stream_that_answered_200_is_a_refusal(serve_app: ServeApp) -> None:
    error = json.dumps({"error": {"message": "too many tokens", "param": None, "code": 400}})
    with pytest.raises(InvalidRequestError, match="too many tokens"):
        await ask(serve_app, events(error, "[DONE]"))


@pytest.mark.parametrize("code", [500, 503, "odd", None])
async def test_a_failure_as_a_streams_first_event_may_be_tried_elsewhere(serve_app: ServeApp, code: Any) -> None:
    with pytest.raises(EngineLostError) as lost:
        await ask(serve_app, events(json.dumps({"error": {"message": "broken", "code": code}})))
    assert not lost.value.suspect


@pytest.mark.parametrize("dead", [True, False])
async def test_a_server_error_is_a_lost_engine_and_suspect_when_dead(serve_app: ServeApp, dead: bool) -> None:
    headers = {ENGINE_DEAD_HEADER: "1"} if dead else {}
    with pytest.raises(EngineLostError) as lost:
        await ask(serve_app, Response("oops", 500, headers))
    assert lost.value.suspect == dead


async def test_an_empty_stream_is_a_lost_engine(serve_app: ServeApp) -> None:
    with pytest.raises(EngineLostError) as lost:
        await ask(serve_app, events())
    assert lost.value.suspect


async def test_a_refused_connection_is_a_lost_engine() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EngineLostError) as lost:
            await EngineConnections(30).open(_lease(address), "/", b"{}")
    assert lost.value.suspect


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_break_before_the_first_byte_is_a_lost_engine(serve_app: ServeApp, kind: str) -> None:
    with pytest.raises(EngineLostError) as lost:
        await ask(serve_app, breaking_after(kind=kind))
    assert lost.value.suspect


async def test_a_break_within_a_whole_answer_is_a_lost_engine(serve_app: ServeApp) -> None:
    with pytest.raises(EngineLostError):
        await ask(serve_app, breaking_after(b'{"half": ', kind="application/json"))


async def test_a_break_after_the_first_bytes_of_a_stream_is_a_broken_stream(serve_app: ServeApp) -> None:
    async with opened(serve_app, breaking_after(b"data: 1\n\n", kind="text/event-stream")) as answer:
        assert await anext(answer.chunks) == b"data: 1\n\n"
        with pytest.raises(StreamBrokenError):
            await anext(answer.chunks)


async def test_silence_before_the_first_byte_is_the_engines_failure_and_not_tried_again(serve_app: ServeApp) -> None:
    with pytest.raises(UpstreamError) as silence:
        await ask(serve_app, silent_after(), silence_timeout_s=0.05)
    assert silence.value.code == "engine_timeout"


async def test_silence_within_a_stream_breaks_it(serve_app: ServeApp) -> None:
    async with opened(serve_app, silent_after(b"data: 1\n\n"), silence_timeout_s=0.05) as answer:
        assert await anext(answer.chunks) == b"data: 1\n\n"
        with pytest.raises(StreamBrokenError):
            await anext(answer.chunks)


async def test_leaving_while_the_engine_is_silent_closes_the_connection(serve_app: ServeApp) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        arrived.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    server = await serve_app(app)
    opening = asyncio.create_task(EngineConnections(30).open(_lease(server.address), "/", b"{}"))
    await arrived.wait()
    opening.cancel()
    await left.wait()
