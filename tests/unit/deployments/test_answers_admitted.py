"""An answer that waits, gives way, is cut, or is paid for."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, TimeoutExceededError, UnavailableError, UpstreamError
from app.requests import Outcome
from deployments.rendering import CHAT, RESPONSES, OpenAIRoute
from tests.answers_rig import DEAD, NoticingEngine, setting
from tests.fakes import (
    FakeCompanion,
    FakeMethod,
    ServeApp,
    breaking_after,
    events,
)
from tests.gates import COLD, HOT, Door


async def test_a_request_that_waits_is_answered_when_its_turn_comes(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({"text": "hello"}))
    first, second = scene.admit(), scene.admit()
    answering = asyncio.create_task(scene.answer(second))
    await asyncio.sleep(0)
    scene.door.pass_time(1.5)
    assert scene.leased == []
    first.close(Outcome.ANSWERED, None, served=True, error=None)
    await answering
    assert (scene.client.status, scene.client.headers["x-kvpulse-waited-ms"]) == (200, "1500")
    await scene.released()


async def test_a_request_that_failover_moves_while_it_waits_is_answered_by_the_other_engines(
    serve_app: ServeApp,
) -> None:
    scene = await setting(serve_app, JSONResponse({"text": "hello"}))
    scene.door = Door(slots=2)
    running = [scene.admit(), scene.admit()]
    answering = asyncio.create_task(scene.answer(scene.admit(may_move=True)))
    await asyncio.sleep(0)
    scene.door.replicas[HOT] = []
    scene.door.gate.tick()
    await answering
    assert scene.leased == [COLD]
    assert (scene.client.headers["x-kvpulse-path"], scene.client.headers["x-kvpulse-engines"]) == ("hot", "cold")
    for each in running:
        each.close(Outcome.CANCELLED, None, served=False, error=None)
    await scene.released()


async def test_a_wait_in_vain_is_refused_with_all_that_was_decided(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({}))
    running = scene.admit()
    answering = asyncio.create_task(scene.answer(scene.admit()))
    await asyncio.sleep(0)
    scene.door.pass_time(61)
    with pytest.raises(ApiError) as refused:
        await answering
    assert (refused.value.status, refused.value.code) == (429, "deadline_passed")
    assert refused.value.headers().items() >= {"x-kvpulse-path": "hot", "x-ratelimit-limit-tokens": "1000"}.items()
    assert (scene.leased, scene.client.sent) == ([], [])
    running.close(Outcome.CANCELLED, None, served=False, error=None)
    await scene.released()


async def test_a_client_that_leaves_the_line_takes_nothing_along(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({}))
    running = scene.admit()
    answering = asyncio.create_task(scene.answer(scene.admit()))
    await asyncio.sleep(0)
    scene.client.left.set()
    await answering
    running.close(Outcome.CANCELLED, None, served=False, error=None)
    await scene.released()
    assert (scene.leased, scene.client.sent, scene.remaining_tokens) == ([], [], 1000)


async def test_a_server_that_gives_up_before_the_answer_has_begun_leaves_nothing_booked(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({}))
    answering = asyncio.create_task(scene.answer())
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await scene.released()


async def test_the_clients_own_deadline_ends_a_wait(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, JSONResponse({}), timeout_s=0.05)
    running = scene.admit()
    with pytest.raises(TimeoutExceededError) as refused:
        await scene.answer(scene.admit())
    assert refused.value.code == "deadline_passed"
    assert scene.door.gate.refusals == {(HOT, "deadline_passed"): 1}
    running.close(Outcome.CANCELLED, None, served=False, error=None)
    await scene.released()


@pytest.mark.parametrize("parts", [(), (b"data: 1\n\n",)], ids=["before the first byte", "within the stream"])
async def test_who_must_give_way_is_told_and_its_engines_work_ends(
    serve_app: ServeApp, parts: tuple[bytes, ...]
) -> None:
    engine = NoticingEngine(*parts)
    scene = await setting(serve_app, engine)
    answering = asyncio.create_task(scene.answer(scene.admit(COLD)))
    await (scene.client.got_bytes if parts else engine.arrived).wait()
    scene.door.report(COLD, kv_usage_ratio=0.99, waiting_requests=1)
    scene.door.pass_time(1.2)
    if parts:
        await answering
        first, last, _ = scene.client.body.split(b"\n\n")
        assert first == b"data: 1"
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "aborted_for_capacity"
        assert scene.client.sent[-1].get("more_body", False) is False
    else:
        with pytest.raises(UnavailableError) as aborted:
            await answering
        assert (aborted.value.status, aborted.value.code) == (503, "aborted_for_capacity")
        assert "retry-after" in aborted.value.headers()
    await engine.ended.wait()
    assert scene.door.gate.refusals == {(COLD, "aborted_for_capacity"): 1}
    scene.door.report(COLD)
    scene.door.gate.tick()
    await scene.released()


async def test_the_shortened_answer_and_its_priority_reach_the_engine(serve_app: ServeApp) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        asked = json.loads((await receive())["body"])
        await JSONResponse(asked)(scope, receive, send)

    scene = await setting(serve_app, echo)
    scene.door.report(COLD, kv_usage_ratio=0.96)
    scene.door.gate.tick()
    await scene.answer(scene.admit(COLD, output=2000, prompt=100))
    assert json.loads(scene.client.body) == {"model": "m", "max_tokens": 256, "priority": 50}
    assert scene.client.headers["x-kvpulse-output-cap-tokens"] == "256"


async def test_a_key_pays_for_what_the_engine_counted(serve_app: ServeApp) -> None:
    """It tells it a while after the client has got the whole answer."""
    scene = await setting(serve_app, JSONResponse({}))
    companions: list[FakeCompanion] = []
    scene.method = FakeMethod(scene.method.replicas, lambda _, companion: companions.append(companion))
    await scene.answer()
    await asyncio.sleep(0.01)
    assert scene.remaining_tokens == 1000 - 20
    companions[0].ended.set_result(13)
    await scene.released()
    assert scene.remaining_tokens == 1000 - 13


async def test_a_key_pays_nothing_where_engines_failed(serve_app: ServeApp) -> None:
    scene = await setting(serve_app, DEAD, DEAD, used_tokens=13)
    with pytest.raises(UpstreamError):
        await scene.answer()
    await scene.released()
    assert scene.remaining_tokens == 1000


@pytest.mark.parametrize(
    ("engines", "fails"),
    [
        ([JSONResponse({"text": "hello"})], False),
        ([JSONResponse({"error": {"message": "no"}}, 400)], False),
        ([DEAD, JSONResponse({"text": "hello"})], False),
        ([breaking_after(b"data: 1\n\n", kind="text/event-stream")], False),
        ([DEAD, DEAD], True),
        ([DEAD], True),
    ],
    ids=["answered", "refused", "answered by another", "broken stream", "two lost", "the only one lost"],
)
async def test_the_path_fails_when_no_replica_begins_to_answer(
    serve_app: ServeApp, engines: list[ASGIApp], fails: bool
) -> None:
    scene = await setting(serve_app, *engines)
    with contextlib.suppress(ApiError):
        await scene.answer()
    await scene.released()
    assert scene.door.guard.states()[HOT].fail is fails


@pytest.mark.parametrize(
    ("kind", "route", "level"),
    [
        ("text/event-stream", CHAT, "refuse_long"),
        ("application/json", CHAT, "normal"),
        ("text/event-stream", RESPONSES, "normal"),
    ],
    ids=["a stream", "a whole answer", "a stream of responses"],
)
async def test_a_first_token_tells_how_fast_prompts_are_taken_in(
    serve_app: ServeApp, kind: str, route: OpenAIRoute, level: str
) -> None:
    """A whole answer comes with its last token, and a stream of responses begins before there is any."""

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        scene.door.clock.advance(1.0)
        await events("1", kind=kind)(scope, receive, send)

    scene = await setting(serve_app, slow, route=route)
    await scene.answer(scene.admit(prompt=900))
    scene.door.report(HOT, queued_prefill_tokens=36_000)
    scene.door.gate.tick()
    assert scene.door.guard.states()[HOT].level.name.lower() == level
