"""One answer from lease to release: what the client gets when engines answer, refuse, die, or the client leaves."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import InvalidRequestError, TimeoutExceededError, UnavailableError, UpstreamError
from deployments.answers import Suspects
from deployments.rendering import RESPONSES
from tests.answers_rig import DEAD, NoticingEngine, setting
from tests.fakes import (
    FakeClock,
    ServeApp,
    breaking_after,
    events,
    silent_after,
)


async def test_an_answer_carries_the_decision_in_its_headers(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({"text": "hello"}))
    await scene.answer()
    assert scene.client.status == 200
    assert scene.client.headers == {
        "content-type": "application/json",
        "x-kvpulse-path": "hot",
        "x-kvpulse-reason": "short_prompt_and_output",
        "x-kvpulse-priority": "50",
        "x-kvpulse-admission": "home",
        "x-kvpulse-engines": "hot",
        "x-kvpulse-level": "normal",
        "x-kvpulse-waited-ms": "0",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "980",
        "x-ratelimit-reset-tokens": "1.200s",
        "x-kvpulse-replica": "r0",
        "x-kvpulse-routing": "fallback",
        "x-kvpulse-matched-tokens": "0",
        "x-kvpulse-ignored": "priority",
    }
    assert json.loads(scene.client.body) == {"text": "hello"}
    await scene.released()


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


async def test_a_request_sent_to_a_replica_that_then_gives_no_slot_is_answered_by_the_one_that_does(
    serve_app: ServeApp,
) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def begins_and_is_left(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await silent_after()(scope, receive, send)
        left.set()

    scene = await setting(serve_app, begins_and_is_left, JSONResponse({"text": "hello"}), full={"r0"})
    scene.method.may_reserve.clear()
    answering = asyncio.create_task(scene.answer())
    await begun.wait()
    scene.method.may_reserve.set()
    await answering
    assert (scene.client.status, scene.client.headers["x-kvpulse-replica"]) == (200, "r1")
    assert scene.client.headers["x-kvpulse-routing"] == "fallback"
    await left.wait()
    assert scene.method.log == ["reserved r1", "companion ended on r1", "released r1"]


async def test_nothing_is_sent_to_the_client_before_the_slot_is_there(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, events("1", "[DONE]"))
    scene.method.may_reserve.clear()
    answering = asyncio.create_task(scene.answer())
    await asyncio.sleep(0.1)  # ample for the engine's first bytes
    assert scene.client.sent == []
    scene.method.may_reserve.set()
    await answering
    assert scene.client.body == b"data: 1\n\ndata: [DONE]\n\n"


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
    engine = NoticingEngine(*parts)
    scene = await setting(serve_app, engine)
    answering = asyncio.create_task(scene.answer())
    await (scene.client.got_bytes if parts else engine.arrived).wait()
    scene.client.left.set()
    await answering
    await engine.ended.wait()
    await scene.released()


async def test_a_deadline_that_passes_before_the_first_byte_is_a_timeout(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, silent_after(), timeout_s=0.05)
    with pytest.raises(TimeoutExceededError):
        await scene.answer()
    assert scene.client.sent == []
    await scene.released()


async def test_a_deadline_that_passes_within_a_stream_ends_it_with_an_error_event(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, silent_after(b"data: 1\n\n"), timeout_s=0.5)
    await scene.answer()
    first, last, _ = scene.client.body.split(b"\n\n")
    assert first == b"data: 1"
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert scene.client.sent[-1].get("more_body", False) is False
    assert scene.method.log[-1] == "released r0"


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
