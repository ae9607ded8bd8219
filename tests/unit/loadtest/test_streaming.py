from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from loadtest.records import Outcome, PlannedRequest, RequestRecord, TrafficClass
from loadtest.streaming import StreamingClient, StreamMeter, Target

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
PLANNED = PlannedRequest("ide/0", TrafficClass.IDE, "/v1/completions", b'{"prompt":"a"}')


def new_record() -> RequestRecord:
    return RequestRecord("ide/0", TrafficClass.IDE, at_s=0.0)


def metered(chunks: list[tuple[float, bytes]], status: int = 200) -> RequestRecord:
    meter = StreamMeter(new_record(), origin_s=10.0)
    meter.on_status(status)
    for now_s, chunk in chunks:
        meter.on_bytes(chunk, now_s)
    return meter.on_end(now_s=20.0)


def test_latency_counts_from_the_origin_and_gaps_from_chunk_to_chunk() -> None:
    record = metered([(11.0, TOKEN), (11.5, TOKEN + TOKEN), (12.0, USAGE + b"data: [DONE]\n\n")])
    assert (record.outcome, record.ttft_s, record.itl_s, record.e2e_s) == (Outcome.OK, 1.0, [0.5, 0.0], 10.0)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (9, 2, 4)


def test_usage_without_prompt_details_counts_nothing_as_cached() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}\n\n'
    assert metered([(11.0, TOKEN + usage + b"data: [DONE]\n\n")]).cached_tokens == 0


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (TOKEN, "stream: ended without [DONE]"),
        (b"data: [DONE]\n\n", "stream: no tokens"),
        (TOKEN + b"data: not json\n\ndata: [DONE]\n\n", "stream: not a completion chunk"),
        (
            TOKEN + b'data: {"error":{"message":"m","code":"engine_failed"}}\n\ndata: [DONE]\n\n',
            "stream: engine_failed",
        ),
    ],
)
def test_a_stream_that_breaks_after_200_is_a_failure(stream: bytes, reason: str) -> None:
    record = metered([(11.0, stream)])
    assert (record.outcome, record.reason) == (Outcome.FAILED, reason)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, Outcome.REFUSED), (503, Outcome.REFUSED), (400, Outcome.FAILED), (500, Outcome.FAILED)],
)
def test_429_and_503_are_refusals_and_other_statuses_failures(status: int, outcome: Outcome) -> None:
    record = metered([(11.0, b'{"error":{"code"'), (11.1, b':"busy"}}')], status)
    assert (record.outcome, record.reason) == (outcome, f"{status} busy")


def test_a_target_must_be_an_http_address() -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8000"):
        Target("localhost:8000")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def stream_two_tokens(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-kvpulse-path": "hot"})
    await response.prepare(request)
    for chunk in (TOKEN[:7], TOKEN[7:], TOKEN, USAGE, b"data: [DONE]\n\n"):
        await response.write(chunk)
    return response


async def send(url: str, timeout_s: float = 30.0, api_key: str | None = None) -> RequestRecord:
    async with StreamingClient(Target(url, api_key), timeout_s) as client:
        return await client.send(PLANNED, new_record(), origin_s=0.0)


async def test_a_real_stream_is_measured_and_its_path_read() -> None:
    async with serving(stream_two_tokens) as url:
        record = await send(url)
    assert (record.outcome, record.reason, record.path, len(record.itl_s)) == (Outcome.OK, "", "hot", 1)


async def test_a_connection_is_used_again_while_it_is_fresh() -> None:
    ports = []

    async def note_port(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        return await stream_two_tokens(request)

    async with serving(note_port) as url, StreamingClient(Target(url)) as client:
        for _ in range(3):
            await client.send(PLANNED, new_record(), origin_s=0.0)
    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_the_body_and_the_key_arrive() -> None:
    seen = {}

    async def note(request: web.Request) -> web.StreamResponse:
        seen.update(key=request.headers["authorization"], body=await request.json())
        return web.json_response({"error": {"code": "quota"}}, status=429)

    async with serving(note) as url:
        record = await send(url, api_key="secret")
    assert seen == {"key": "Bearer secret", "body": json.loads(PLANNED.body)}
    assert (record.outcome, record.reason) == (Outcome.REFUSED, "429 quota")


async def test_a_silent_server_is_a_timeout() -> None:
    async def say_nothing(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    async with serving(say_nothing) as url:
        record = await send(url, timeout_s=0.05)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "timeout")


async def test_a_connection_cut_in_the_stream_is_a_failure() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(TOKEN)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(cut) as url:
        record = await send(url)
    assert (record.outcome, record.ttft_s is not None) == (Outcome.FAILED, True)
    assert record.reason.startswith("connection: ")


async def test_nobody_listening_is_a_failure() -> None:
    async with serving(stream_two_tokens) as url:
        pass
    record = await send(url)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "connection: ConnectionRefusedError")
