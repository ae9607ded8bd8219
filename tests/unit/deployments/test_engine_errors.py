"""vLLM's error bodies become OpenAI's."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import ApiError, InvalidRequestError, NotFoundError, UnavailableError, UpstreamError
from deployments.engine_errors import api_error


def body(message: str = "why", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (404, NotFoundError),
        (422, InvalidRequestError),
        (429, InvalidRequestError),
        (500, UpstreamError),
        (503, UnavailableError),
    ],
)
def test_a_status_has_its_kind_of_error(status: int, kind: type[ApiError]) -> None:
    error = api_error(status, body("why", "temperature"))
    assert type(error) is kind
    assert error.message == "why"


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 503])
def test_a_refusal_keeps_its_status(status: int) -> None:
    assert api_error(status, body()).status == status


def test_a_failed_engine_is_a_bad_gateway() -> None:
    assert api_error(500, body()).status == 502


def test_the_field_at_fault_is_kept_and_vllms_number_is_no_code() -> None:
    error = api_error(400, body(param="top_p"))
    assert (error.param, error.code) == ("top_p", None)


def test_an_overloaded_engine_says_when_to_come_back() -> None:
    error = api_error(503, body())
    assert (error.code, error.headers()) == ("engine_overloaded", {"retry-after": "1"})


@pytest.mark.parametrize("odd", [None, "text", [], {}, {"error": "text"}, {"error": {}}, {"error": {"message": None}}])
def test_a_body_of_another_shape_still_tells_the_status(odd: Any) -> None:
    assert "418" in api_error(418, odd).message
