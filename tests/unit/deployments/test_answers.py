"""One answer from lease to release: what the client gets when engines answer, refuse, die, or the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, InvalidRequestError, TimeoutExceededError, UnavailableError, UpstreamError
from app.requests import Outcome, Prompt, RequestFeatures, RequestPath
from deployments.admitted import Admitted
from deployments.answers import Dispatch, EngineResponse, Suspects
from deployments.forwarding import EngineConnections
from deployments.leases import Lease
from deployments.rendering import CHAT, RESPONSES, OpenAIRoute, Rendered
from tests.fakes import (
    FakeClock,
    FakeCompanion,
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
from tests.gates import COLD, HOT, Door, client_with

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

        dispatch = Dispatch(self._route, admitted, body, lease, EngineConnections(30), self.suspects, self._timeout_s)
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
    arrived, ended = asyncio.Event(), asyncio.Event()
    silent = silent_after(*parts)

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.set()
        await silent(scope, receive, send)
        ended.set()

    scene = await setting(serve_app, engine)
    answering = asyncio.create_task(scene.answer(scene.admit(COLD)))
    await (scene.client.got_bytes if parts else arrived).wait()
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
    await ended.wait()
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
