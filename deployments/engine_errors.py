"""vLLM's error bodies, told in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from app.errors import ApiError, InvalidRequestError, NotFoundError, UnavailableError, UpstreamError


class EngineLostError(Exception):
    """The replica could not answer, and nothing has been sent to the client: another one may.

    Args:
        why: for the log and the client's error.
        suspect: whether other requests should avoid the replica for a while.
    """

    def __init__(self, why: str, suspect: bool) -> None:
        super().__init__(why)
        self.suspect = suspect


class StreamBrokenError(Exception):
    """The replica went away in the middle of an answer of which the client has a part."""


def api_error(status: int, body: Any) -> ApiError:
    """The error of an engine's answer: `{"error": {"message", "type", "param", "code"}}` with an integer code."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = str(error.get("message") or f"the engine answered with status {status}")
    param = error.get("param")
    if status == 404:
        return NotFoundError(message, param=param)
    if status == 503:
        return UnavailableError(message, code="engine_overloaded", retry_after_s=1.0)
    if status == 400:
        return InvalidRequestError(message, param=param)
    if 400 < status < 500:
        refusal = InvalidRequestError(message, param=param)
        refusal.status = status
        return refusal
    return UpstreamError(message)
