"""Every error that a client can cause has OpenAI's shape, the right status, and names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.client import CHAT, COMPLETIONS, RESPONSES
from tests.integration.configs import MAX_BODY_BYTES, MODEL
from tests.integration.stack import Stack

HELLO = [{"role": "user", "content": "hello"}]
LONG = "word " * 9000  # more tokens than the context has

BAD_BODIES: dict[str, tuple[str, dict[str, Any], int, str | None, str | None]] = {
    "too many sequences": (CHAT, {"model": MODEL, "messages": HELLO, "n": 129}, 400, "n", None),
    "unknown model": (CHAT, {"model": "gpt-9", "messages": HELLO}, 404, "model", "model_not_found"),
    "unknown suffix": (CHAT, {"model": f"{MODEL}:warm", "messages": HELLO}, 404, "model", "model_not_found"),
    "no model": (CHAT, {"messages": HELLO}, 400, "model", None),
    "model no string": (CHAT, {"model": 7, "messages": HELLO}, 400, "model", None),
    "no messages": (CHAT, {"model": MODEL}, 400, "messages", None),
    "messages no list": (CHAT, {"model": MODEL, "messages": 5}, 400, "messages", None),
    "no prompt": (COMPLETIONS, {"model": MODEL}, 400, "prompt", None),
    "empty prompt": (COMPLETIONS, {"model": MODEL, "prompt": ""}, 400, "prompt", None),
    "no input": (RESPONSES, {"model": MODEL}, 400, "input", None),
    "max_tokens no number": (CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": "x"}, 400, "max_tokens", None),
    "negative max_tokens": (CHAT, {"model": MODEL, "messages": HELLO, "max_tokens": -1}, 400, "max_tokens", None),
    "temperature no number": (
        CHAT,
        {"model": MODEL, "messages": HELLO, "temperature": "hot"},
        400,
        "temperature",
        None,
    ),
    "long prompt": (COMPLETIONS, {"model": MODEL, "prompt": LONG}, 400, "prompt", "context_length_exceeded"),
    "long chat": (
        CHAT,
        {"model": MODEL, "messages": [{"role": "user", "content": LONG}]},
        400,
        "messages",
        "context_length_exceeded",
    ),
    "long input": (RESPONSES, {"model": MODEL, "input": LONG}, 400, "input", "context_length_exceeded"),
    "max_tokens beyond the context": (
        COMPLETIONS,
        {"model": MODEL, "prompt": "hello", "max_tokens": 8192},
        400,
        "max_tokens",
        "context_length_exceeded",
    ),
    "max_completion_tokens beyond the context": (
        CHAT,
        {"model": MODEL, "messages": HELLO, "max_completion_tokens": 8190},
        400,
        "max_completion_tokens",
        "context_length_exceeded",
    ),
    "max_output_tokens beyond the context": (
        RESPONSES,
        {"model": MODEL, "input": "hello", "max_output_tokens": 9000},
        400,
        "max_output_tokens",
        "context_length_exceeded",
    ),
}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, after a check of its shape."""
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    return dict(body["error"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused_before_any_stream(plumbing: Stack, case: str, stream: bool) -> None:
    route, body, status, param, code = BAD_BODIES[case]
    response = httpx.post(plumbing.url + route, json=body | {"stream": stream}, timeout=60)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code), error
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "raw",
    [b"{bad", b"", b'{"model": "\xff\xfe"}', b"[1, 2]", b'"text"', b"null", b'{"a": 1} x'],
    ids=["malformed", "empty", "not UTF-8", "array", "string", "null", "two documents"],
)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_refused(plumbing: Stack, route: str, raw: bytes) -> None:
    response = httpx.post(plumbing.url + route, content=raw, headers={"content-type": "application/json"}, timeout=60)
    assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")


def test_a_limit_beyond_the_context_is_refused_with_the_numbers(plumbing: Stack) -> None:
    body = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 8100, "stream": True}
    message = error_of(httpx.post(plumbing.url + COMPLETIONS, json=body, timeout=60))["message"]
    assert all(number in message for number in ("8192", "8200", "100", "8100")), message


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/v1/models"])
def test_a_wrong_method_is_told_the_right_one(plumbing: Stack, route: str) -> None:
    wrong, right = ("POST", "GET") if route == "/v1/models" else ("GET", "POST")
    response = httpx.request(wrong, plumbing.url + route, timeout=60)
    assert response.status_code == 405
    assert response.headers["allow"] == right
    assert error_of(response)["code"] == "method_not_allowed"


@pytest.mark.parametrize("route", ["/", "/v1", "/v1/embeddings", "/docs", "/openapi.json", "/metrics", "/v1/files/x"])
def test_an_unknown_route_is_404(plumbing: Stack, route: str) -> None:
    response = httpx.get(plumbing.url + route, timeout=60)
    assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")


def test_a_declared_body_over_the_limit_is_413(plumbing: Stack) -> None:
    body = json.dumps({"model": MODEL, "prompt": "x" * MAX_BODY_BYTES})
    response = httpx.post(plumbing.url + COMPLETIONS, content=body, timeout=60)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert str(MAX_BODY_BYTES) in error["message"]


def test_a_chunked_body_over_the_limit_is_413(plumbing: Stack) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 1024 + 1):
            yield b" " * 1024

    response = httpx.post(plumbing.url + COMPLETIONS, content=pieces(), timeout=60)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")


def test_a_chunked_body_within_the_limit_is_served(plumbing: Stack) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b'{"prompt": "hello",', b'"max_tokens": 2, ', f'"model": "{MODEL}"'.encode(), b"}")

    response = httpx.post(plumbing.url + COMPLETIONS, content=pieces(), timeout=60)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 2
