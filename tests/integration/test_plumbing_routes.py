"""Which path a request takes and what its headers say; the routes that generate nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.client import CHAT, COMPLETIONS, PATH_HEADER
from tests.integration.configs import MODEL
from tests.integration.stack import Stack

SHORT: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 3}


def ask(stack: Stack, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(stack.url + COMPLETIONS, json=body, headers=headers, timeout=120)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("fields", "path", "reason"),
    [
        ({}, "hot", "short_prompt_and_output"),
        ({"prompt": [6541] * 2048, "max_tokens": 3}, "hot", "short_prompt_and_output"),
        ({"prompt": [6542] * 2049, "max_tokens": 3}, "cold", "long_prompt"),
        ({"max_tokens": 513}, "cold", "long_output"),
        ({"model": f"{MODEL}:cold"}, "cold", "forced"),
        ({"model": f"{MODEL}:hot", "max_tokens": 600}, "hot", "forced"),
    ],
)
def test_the_headers_tell_path_and_reason(
    plumbing: Stack, fields: dict[str, Any], path: str, reason: str, stream: bool
) -> None:
    response = ask(plumbing, SHORT | fields | {"stream": stream})
    assert response.status_code == 200
    assert response.headers[PATH_HEADER] == path
    assert response.headers["x-kvpulse-reason"] == reason
    assert response.headers["x-kvpulse-replica"]
    assert "x-kvpulse-ignored" not in response.headers


@pytest.mark.parametrize("path", ["hot", "cold"])
def test_a_header_forces_the_path(plumbing: Stack, path: str) -> None:
    response = ask(plumbing, SHORT, {PATH_HEADER: path})
    assert (response.headers[PATH_HEADER], response.headers["x-kvpulse-reason"]) == (path, "forced")


def test_the_answer_names_the_served_model_without_the_suffix(plumbing: Stack) -> None:
    assert ask(plumbing, SHORT | {"model": f"{MODEL}:cold"}).json()["model"] == MODEL


def test_an_unknown_path_in_the_header_is_refused(plumbing: Stack) -> None:
    response = ask(plumbing, SHORT, {PATH_HEADER: "tepid"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, PATH_HEADER)


def test_each_path_has_replicas_of_its_own(plumbing: Stack) -> None:
    hot = {ask(plumbing, SHORT, {PATH_HEADER: "hot"}).headers["x-kvpulse-replica"] for _ in range(20)}
    cold = {ask(plumbing, SHORT, {PATH_HEADER: "cold"}).headers["x-kvpulse-replica"] for _ in range(5)}
    assert len(hot) == 2
    assert len(cold) == 1
    assert not hot & cold


FAKE_IDS = {"prompt_token_ids": [11, 12, 13, 14]}
ENGINE_FIELDS: dict[str, Any] = {
    "cache_salt": "another's",
    "priority": -1_000_000,
    "kv_transfer_params": FAKE_IDS,
    "vllm_xargs": {"kv_transfer_params": "x"},
    "request_id": "chosen-by-the-client",
}


@pytest.mark.parametrize("field", ENGINE_FIELDS)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_a_field_for_the_inside_of_the_engine_changes_nothing(plumbing: Stack, route: str, field: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "hello"}]} if route == CHAT else {"prompt": "hello"}
    body = {"model": MODEL, "max_tokens": 8, "temperature": 0} | prompt
    plain = httpx.post(plumbing.url + route, json=body, timeout=60)
    probed = httpx.post(plumbing.url + route, json=body | {field: ENGINE_FIELDS[field]}, timeout=60)
    assert probed.status_code == 200, probed.text
    assert probed.headers["x-kvpulse-ignored"] == field
    assert _told(probed) == _told(plain)


def test_headers_for_the_inside_of_the_engine_do_not_reach_it(plumbing: Stack) -> None:
    """vLLM refuses a data-parallel rank that it does not have, and a priority that is no number."""
    headers = {"X-data-parallel-rank": "7", "X-Vllm-Priority": "first", "X-Request-Id": "chosen-by-the-client"}
    response = ask(plumbing, SHORT, headers)
    assert response.status_code == 200, response.text
    assert "chosen-by-the-client" not in response.text


def _told(response: httpx.Response) -> Any:
    body = response.json()
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return body["choices"], usage


def test_the_model_list_has_the_served_model_alone(plumbing: Stack) -> None:
    listing = httpx.get(plumbing.url + "/v1/models", timeout=60).json()
    assert [card["id"] for card in listing["data"]] == [MODEL]
    assert httpx.get(f"{plumbing.url}/v1/models/{MODEL}", timeout=60).json()["id"] == MODEL
    unknown = httpx.get(f"{plumbing.url}/v1/models/owner/other", timeout=60)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_tokens_make_the_round_trip(plumbing: Stack) -> None:
    text = "naïve 東京 🚀 code();"
    tokens = httpx.post(f"{plumbing.url}/tokenize", json={"model": MODEL, "prompt": text}, timeout=60).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    assert tokens["max_model_len"] == 8192
    back = httpx.post(f"{plumbing.url}/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]}, timeout=60)
    assert back.json()["prompt"] == text


def test_a_chat_is_tokenised_as_it_is_when_it_is_answered(plumbing: Stack) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    counted = httpx.post(f"{plumbing.url}/tokenize", json=chat, timeout=60).json()["count"]
    answered = httpx.post(plumbing.url + CHAT, json=chat | {"max_tokens": 1}, timeout=60).json()
    assert answered["usage"]["prompt_tokens"] == counted


@pytest.mark.parametrize(("route", "status"), [("/health", "alive"), ("/ready", "ready")])
def test_a_served_model_is_alive_and_ready(plumbing: Stack, route: str, status: str) -> None:
    response = httpx.get(plumbing.url + route, timeout=60)
    assert (response.status_code, response.json()) == (200, {"status": status})
