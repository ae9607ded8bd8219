"""The private server lets nobody in without the token, and ties each answer to the lease that pays for it."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments import private_server
from deployments.private_server import (
    ENGINE_DEAD_HEADER,
    LEASE_HEADER,
    LeasedAnswers,
    PrivateServer,
    without_middleware,
)
from tests.fake_output_processor import FakeOutputProcessor
from tests.fakes import ServeApp, until

TOKEN = {"authorization": "Bearer secret"}


class Engine:
    """An ASGI app that streams one chunk, then waits to be told to end, or for its client to leave."""

    def __init__(self, status: int = 200) -> None:
        self.dead = False
        self.requests = 0
        self.may_end = asyncio.Event()
        self.client_left = asyncio.Event()
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await receive()
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        leaving = asyncio.create_task(self._watch(receive))
        ending = asyncio.create_task(self.may_end.wait())
        await asyncio.wait((leaving, ending), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        ending.cancel()
        if not self.client_left.is_set():
            await send({"type": "http.response.body", "body": b"last"})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.client_left.set()

    def leased(self) -> LeasedAnswers:
        return LeasedAnswers(self, "secret", lambda: self.dead)


async def post(server: PrivateServer, headers: dict[str, str]) -> tuple[int, Any, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{server.address}/", headers=headers) as response,
    ):
        return response.status, response.headers, await response.read()


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer "}, {"authorization": "Bearer secreT"}, {"authorization": "secret"}]
)
async def test_who_has_no_token_is_refused_and_the_engine_never_hears(
    serve_app: ServeApp, headers: dict[str, str]
) -> None:
    engine = Engine()
    status, _, body = await post(await serve_app(engine.leased()), headers)
    assert (status, body) == (401, b"")
    assert engine.requests == 0


async def test_attend_returns_when_the_answer_has_ended(serve_app: ServeApp) -> None:
    engine = Engine()
    answers = engine.leased()
    asking = asyncio.create_task(post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"}))
    attending = asyncio.create_task(answers.attend("a"))
    await until(lambda: answers.running == 1)
    assert not attending.done()
    engine.may_end.set()
    await attending
    assert (await asking)[2] == b"first last"
    assert answers.running == 0


async def test_attend_may_come_after_the_answer_has_ended(serve_app: ServeApp) -> None:
    engine = Engine()
    engine.may_end.set()
    answers = engine.leased()
    await post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"})
    await answers.attend("a")


async def test_cancelling_attend_makes_the_engine_see_its_client_leave(serve_app: ServeApp) -> None:
    engine = Engine()
    answers = engine.leased()
    asking = asyncio.create_task(post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"}))
    attending = asyncio.create_task(answers.attend("a"))
    await until(lambda: answers.running == 1)
    attending.cancel()
    await engine.client_left.wait()
    await asyncio.wait([asking])
    await until(lambda: answers.running == 0)


async def test_a_client_that_leaves_ends_the_lease(serve_app: ServeApp) -> None:
    engine = Engine()
    answers = engine.leased()
    asking = asyncio.create_task(post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"}))
    attending = asyncio.create_task(answers.attend("a"))
    await until(lambda: answers.running == 1)
    asking.cancel()
    await attending
    assert engine.client_left.is_set()


async def test_attend_gives_up_on_an_answer_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_server, "HTTP_ARRIVAL_S", 0.01)
    await Engine().leased().attend("a")


async def test_leases_do_not_end_each_other(serve_app: ServeApp) -> None:
    engine = Engine()
    answers = engine.leased()
    server = await serve_app(answers)
    asking = [asyncio.create_task(post(server, TOKEN | {LEASE_HEADER: name})) for name in "ab"]
    leaving, staying = (asyncio.create_task(answers.attend(name)) for name in "ab")
    await until(lambda: answers.running == 2)
    leaving.cancel()
    await until(lambda: answers.running == 1)
    assert not staying.done()
    engine.may_end.set()
    await staying
    await asyncio.wait(asking)


async def test_what_unattended_answers_leave_behind_is_bounded(
    serve_app: ServeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_server, "MAX_UNATTENDED", 3)
    engine = Engine()
    engine.may_end.set()
    answers = engine.leased()
    server = await serve_app(answers)
    for number in range(8):
        await post(server, TOKEN | {LEASE_HEADER: str(number)})
    assert len(answers._answers) == 3


@pytest.mark.parametrize("dead", [True, False])
async def test_an_error_of_a_dead_engine_says_so(serve_app: ServeApp, dead: bool) -> None:
    engine = Engine(status=500)
    engine.dead = dead
    engine.may_end.set()
    status, headers, _ = await post(await serve_app(engine.leased()), TOKEN)
    assert status == 500
    assert (ENGINE_DEAD_HEADER in headers) == dead


async def test_an_answer_whose_engine_dies_breaks_off(serve_app: ServeApp) -> None:
    """vLLM would end it like a complete one."""
    engine = Engine()
    answers = engine.leased()
    asking = asyncio.create_task(post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"}))
    await until(lambda: answers.running == 1)
    engine.dead = True
    engine.may_end.set()
    with pytest.raises(aiohttp.ClientPayloadError):
        await asking
    assert answers.running == 0


async def test_a_stopped_server_is_not_alive(serve_app: ServeApp) -> None:
    server = PrivateServer(Engine(), "127.0.0.1")
    assert not server.alive
    server = await serve_app(Engine())
    assert server.alive
    assert server.address.startswith("127.0.0.1:")
    await server.stop()
    assert not server.alive


@pytest.mark.parametrize("attended_first", [True, False])
async def test_attend_tells_what_the_answer_cost(serve_app: ServeApp, attended_first: bool) -> None:
    processor = FakeOutputProcessor()
    may_end = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        processor.ask("sequence", prompt_len=10).stats.num_generation_tokens = 3
        await may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    answers = LeasedAnswers(app, "secret", lambda: False)
    asking = asyncio.create_task(post(await serve_app(answers), TOKEN | {LEASE_HEADER: "a"}))
    if attended_first:
        attending = asyncio.create_task(answers.attend("a"))
        may_end.set()
        assert await attending == 13
    may_end.set()
    await asking
    if not attended_first:
        assert await answers.attend("a") == 13


class Refusing:
    """A middleware that lets nothing through."""

    def __init__(self, app: ASGIApp) -> None:
        pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("refused", 403)(scope, receive, send)


@pytest.mark.parametrize("built", [False, True])
async def test_vllms_middleware_is_gone_even_if_its_stack_has_been_built(serve_app: ServeApp, built: bool) -> None:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("answered")

    app = Starlette(routes=[Route("/", answer, methods=["POST"])], middleware=[Middleware(Refusing)])
    if built:
        app.middleware_stack = app.build_middleware_stack()
    server = await serve_app(without_middleware(app))
    status, _, body = await post(server, {})
    assert (status, body) == (200, b"answered")
