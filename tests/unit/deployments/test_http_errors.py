"""Every error of every route has OpenAI's shape, and none tells what a foreign exception quoted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Message

from app.errors import UnavailableError
from deployments.http_errors import openai_shaped_app

PROMPT = "what a client has asked"


@pytest.fixture
def app() -> FastAPI:
    http = openai_shaped_app()

    @http.get("/busy")
    async def busy() -> None:
        raise UnavailableError("come back", retry_after_s=3)

    @http.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "a teapot")

    @http.get("/broken")
    async def broken() -> None:
        raise KeyError(PROMPT)

    @http.get("/breaks")
    async def breaks() -> StreamingResponse:
        async def chunks() -> Any:
            yield b"begun"
            raise KeyError(PROMPT)

        return StreamingResponse(chunks())

    return http


async def get(app: FastAPI, route: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://kvpulse") as client:
        return await client.request(method, route)


async def test_an_error_of_ours_keeps_its_status_body_and_headers(app: FastAPI) -> None:
    response = await get(app, "/busy")
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json() == {
        "error": {"message": "come back", "type": "server_error", "param": None, "code": "no_ready_engine"}
    }


async def test_an_unknown_route_names_itself(app: FastAPI) -> None:
    response = await get(app, "/v1/nothing", "POST")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "unknown_url")
    assert "POST /v1/nothing" in error["message"]


async def test_a_wrong_method_tells_the_right_one(app: FastAPI) -> None:
    response = await get(app, "/busy", "DELETE")
    assert (response.status_code, response.headers["allow"]) == (405, "GET")
    assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("page", ["/docs", "/redoc", "/openapi.json"])
async def test_there_are_no_documentation_pages(app: FastAPI, page: str) -> None:
    assert (await get(app, page)).status_code == 404


async def test_another_http_error_keeps_its_status(app: FastAPI) -> None:
    response = await get(app, "/teapot")
    assert (response.status_code, response.json()["error"]["message"]) == (418, "a teapot")


async def test_an_unexpected_error_is_a_500_whose_message_reaches_nobody(
    app: FastAPI, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    response = await get(app, "/broken")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "KeyError" in caplog.text
    assert PROMPT not in caplog.text + response.text


async def test_an_unexpected_error_within_an_answer_adds_nothing_to_it(app: FastAPI) -> None:
    """The server closes the connection of an answer that does not end, so the client knows."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/breaks",
        "headers": [],
        "query_string": b"",
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["status"], sent[1]["body"], sent[1]["more_body"]) == (200, b"begun", True)
