"""API keys: who is let in, what each may do, and that no key sees another's cache."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.client import CHAT, COMPLETIONS, PATH_HEADER, RESPONSES
from tests.integration.configs import KEYS, MODEL
from tests.integration.stack import Stack

BODY: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 1}


def ask(stack: Stack, key: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[key]}"} | (headers or {})
    return httpx.post(stack.url + COMPLETIONS, json=body, headers=headers, timeout=300)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sk-wrong-key"},
        {"authorization": "Bearer"},
        {"authorization": KEYS["owner"]},
        {"authorization": f"Basic {KEYS['owner']}"},
        {"authorization": f"Bearer {KEYS['owner']}x"},
        {"x-api-key": KEYS["owner"]},
    ],
    ids=["none", "wrong", "empty", "no scheme", "another scheme", "longer", "another header"],
)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/detokenize", "/v1/models"])
def test_without_a_key_nothing_is_answered(answers: Stack, route: str, headers: dict[str, str]) -> None:
    method = "GET" if route == "/v1/models" else "POST"
    response = httpx.request(method, answers.url + route, headers=headers, timeout=60)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("route", ["/health", "/ready"])
def test_probes_need_no_key(answers: Stack, route: str) -> None:
    assert httpx.get(answers.url + route, timeout=60).status_code == 200


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_let_in(answers: Stack, key: str) -> None:
    assert ask(answers, key, BODY).status_code == 200


def test_a_key_forces_a_path_only_with_permission(answers: Stack) -> None:
    assert ask(answers, "owner", BODY | {"model": f"{MODEL}:cold"}).headers[PATH_HEADER] == "cold"
    assert ask(answers, "guest", BODY | {"model": f"{MODEL}:cold"}).status_code == 404
    assert ask(answers, "owner", BODY, {PATH_HEADER: "cold"}).headers[PATH_HEADER] == "cold"
    refused = ask(answers, "guest", BODY, {PATH_HEADER: "cold"})
    assert (refused.headers[PATH_HEADER], refused.headers["x-kvpulse-ignored"]) == ("hot", PATH_HEADER)


def test_a_key_meets_its_own_prefixes_and_no_other_key_does(answers: Stack) -> None:
    body = BODY | {"prompt": "What one tenant asks is not another's to find out. " * 20}

    def cached(key: str, **fields: Any) -> int:
        details = ask(answers, key, body | fields).json()["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"]) if details else 0

    assert cached("owner") == 0
    assert cached("owner") > 0
    assert cached("rival") == 0
    assert cached("rival", cache_salt="") == cached("rival") > 0, "a salt of its own does not lead a key elsewhere"
    assert cached("guest") == 0
