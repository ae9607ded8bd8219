"""Every error renders OpenAI's body, and the headers that its status asks for."""

from __future__ import annotations

import pytest

from app.errors import (
    ApiError,
    AuthenticationError,
    BodyTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    TimeoutExceededError,
    UnavailableError,
    UpstreamError,
)

QUOTA = OverloadedError("m", code="tokens_per_minute", retry_after_s=2.5).tell(
    {"x-ratelimit-limit-tokens": "1000", "x-ratelimit-remaining-tokens": "0"}
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ApiError("m"), 500, "server_error", None),
        (InvalidRequestError("m"), 400, "invalid_request_error", None),
        (AuthenticationError("m"), 401, "invalid_request_error", "invalid_api_key"),
        (NotFoundError("m"), 404, "invalid_request_error", None),
        (MethodNotAllowedError("m", "GET"), 405, "invalid_request_error", "method_not_allowed"),
        (TimeoutExceededError("m"), 408, "timeout_error", "timeout"),
        (BodyTooLargeError("m"), 413, "invalid_request_error", "request_too_large"),
        (OverloadedError("m"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (OverloadedError("m", code="kv_cache_high"), 429, "rate_limit_error", "kv_cache_high"),
        (QUOTA, 429, "rate_limit_error", "tokens_per_minute"),
        (UpstreamError("m"), 502, "server_error", "engine_failed"),
        (UnavailableError("m"), 503, "server_error", "no_ready_engine"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ApiError) else None,
)
def test_an_error_has_its_status_and_openais_body(error: ApiError, status: int, kind: str, code: str | None) -> None:
    assert error.status == status
    assert error.body() == {"error": {"message": "m", "type": kind, "param": None, "code": code}}


def test_an_error_names_the_field_and_a_code_of_its_own() -> None:
    error = InvalidRequestError("too long", param="messages", code="context_length_exceeded").body()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(("wait_s", "header"), [(0.01, "1"), (1.0, "1"), (1.2, "2"), (30.0, "30")])
def test_retry_after_is_in_whole_seconds_rounded_up(wait_s: float, header: str) -> None:
    assert UnavailableError("busy", retry_after_s=wait_s).headers() == {"retry-after": header}


def test_without_a_wait_there_is_no_retry_after() -> None:
    assert UnavailableError("busy").headers() == {}


def test_a_refused_method_tells_the_allowed_ones() -> None:
    assert MethodNotAllowedError("no", "GET, HEAD").headers() == {"allow": "GET, HEAD"}


def test_a_missing_key_tells_the_scheme() -> None:
    assert AuthenticationError("who?").headers() == {"www-authenticate": "Bearer"}


def test_a_spent_quota_tells_when_to_return_and_what_is_left() -> None:
    assert QUOTA.headers() == {
        "retry-after": "3",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
    }


def test_an_error_tells_what_had_been_decided_beside_its_own_headers() -> None:
    error = AuthenticationError("who?", retry_after_s=1).tell({"a": "1"}).tell({"b": "2"})
    assert error.headers() == {"a": "1", "b": "2", "retry-after": "1", "www-authenticate": "Bearer"}
