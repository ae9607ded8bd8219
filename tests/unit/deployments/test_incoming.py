"""Who may ask, what of a body is dropped, and what a request says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.requests import Request

from app.config.keys import Client, KeyRing
from app.config.schema import AppConfig
from app.errors import AuthenticationError, BodyTooLargeError, InvalidRequestError
from app.requests import RequestPath
from deployments.incoming import Incoming, Intake, request_timeout_s
from tests.unit.deployments.configs import config_of

KEYS = [
    {"name": "owner", "key": "sk-owner-1", "allow": ["path", "priority"]},
    {"name": "guest", "key": "sk-guest-1"},
]


def request(body: bytes | Mapping[str, Any] = b"", host: str = "127.0.0.1", **headers: str) -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    scope = {
        "type": "http",
        "client": (host, 1),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": raw}

    return Request(scope, receive)


def intake(keys: bool = False, **config: Any) -> Intake:
    settings: AppConfig = config_of(**config)
    return Intake(settings, KeyRing.from_document(KEYS, isolate=True) if keys else None, frozenset({"tiny"}))


async def read(body: Mapping[str, Any], client: Client | None = None, **headers: str) -> Incoming:
    reader = intake(routing={"allow_forced_path": True})
    asked = request({"model": "tiny", **body}, **headers)
    return await reader.read(asked, client or reader.authenticate(asked))


def test_without_keys_clients_of_this_machine_are_answered_and_no_others() -> None:
    assert intake().authenticate(request()).name == "anonymous"
    with pytest.raises(AuthenticationError) as refused:
        intake().authenticate(request(host="10.0.0.1"))
    assert refused.value.code == "keys_required"
    assert intake(auth={"anonymous_network": True}).authenticate(request(host="10.0.0.1")).name == "anonymous"


@pytest.mark.parametrize("sent", ["", "Bearer", "Bearer sk-owner-2", "Basic sk-owner-1"])
def test_with_keys_nobody_passes_without_one(sent: str) -> None:
    with pytest.raises(AuthenticationError):
        intake(keys=True).authenticate(request(authorization=sent))


def test_a_key_tells_who_sends() -> None:
    assert intake(keys=True).authenticate(request(authorization="Bearer sk-guest-1")).name == "guest"


@pytest.mark.parametrize(
    ("key", "kept", "told"), [("owner", {"priority": 1}, "request_id"), ("guest", {}, "priority,request_id")]
)
async def test_what_a_client_may_not_say_is_dropped_and_named(key: str, kept: dict[str, int], told: str) -> None:
    reader = intake(keys=True)
    client = reader.authenticate(request(authorization=f"Bearer sk-{key}-1"))
    asked = await reader.read(request({"model": "tiny", "priority": 1, "request_id": "x"}), client)
    assert asked.body == {"model": "tiny", "cache_salt": client.cache_salt, **kept}
    assert asked.told == {"x-kvpulse-ignored": told}


@pytest.mark.parametrize(
    ("body", "headers", "label"),
    [
        ({"user": "u", "prompt_cache_key": "k"}, {"x_session_id": "s"}, "s"),
        ({"user": "u", "prompt_cache_key": "k"}, {}, "k"),
        ({"user": "u"}, {}, "u"),
        ({"user": 7, "prompt_cache_key": ""}, {}, None),
        ({}, {}, None),
    ],
)
async def test_a_session_is_labelled_by_header_cache_key_or_user(
    body: dict[str, Any], headers: dict[str, str], label: str | None
) -> None:
    assert (await read(body, **headers)).session_label == label


async def test_a_path_is_forced_by_header_or_suffix() -> None:
    assert (await read({}, x_kvpulse_path="cold")).forced_path is RequestPath.COLD
    by_suffix = await read({"model": "tiny:cold"}, x_kvpulse_path="hot")
    assert (by_suffix.forced_path, by_suffix.body["model"]) == (RequestPath.COLD, "tiny")
    with pytest.raises(InvalidRequestError):
        await read({}, x_kvpulse_path="warm")


async def test_a_path_that_may_not_be_forced_is_named_as_ignored() -> None:
    asked = await read({}, Client("guest", frozenset()), x_kvpulse_path="cold")
    assert (asked.forced_path, asked.told) == (None, {"x-kvpulse-ignored": "x-kvpulse-path"})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'{"a": "\xff"}'])
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await intake().json_body(request(body))
    assert refused.value.code == "invalid_json"


async def test_a_body_that_is_too_long_is_refused_by_what_it_declares_and_by_what_comes() -> None:
    reader = intake(limits={"max_body_bytes": 10})
    with pytest.raises(BodyTooLargeError):
        await reader.json_body(request(b"{}", content_length="11"))
    with pytest.raises(BodyTooLargeError):
        await reader.json_body(request(b'{"a": 12345}'))


@pytest.mark.parametrize("header", [None, "", "soon", "0", "-1", "nan", "inf"])
def test_what_is_no_time_is_no_deadline(header: str | None) -> None:
    assert request_timeout_s(header) is None


@pytest.mark.parametrize("header", ["0.1", "2", "30", "1e3"])
def test_our_deadline_comes_before_serves_own(header: str) -> None:
    deadline_s = request_timeout_s(header)
    assert deadline_s is not None
    assert 0 < deadline_s < float(header)
