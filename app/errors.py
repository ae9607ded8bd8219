"""The one tree of errors that a client can see. Each knows its HTTP status and renders OpenAI's error body.

ApiError
|-- InvalidRequestError     400  the body or a value in it
|-- AuthenticationError     401  missing or wrong API key
|-- PermissionDeniedError   403  the key may not do this
|-- NotFoundError           404  unknown route or model
|-- MethodNotAllowedError   405
|-- BodyTooLargeError       413
|-- TimeoutExceededError    408  the request's own deadline passed
|-- OverloadedError         429  a quota is spent, or the engines are pressed; carries Retry-After
|-- UpstreamError           502  the engine broke while answering
`-- UnavailableError        503  no engine can take the request now; carries Retry-After
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self


class ApiError(Exception):
    """Base of every error a client sees.

    Args:
        message: one sentence with the field, the value and the remedy. Never contains prompt text or keys.
        param: the request field at fault, or None.
        code: machine-readable reason, e.g. `context_length_exceeded`.
        retry_after_s: when set, sent as `Retry-After` (whole seconds, rounded up).
    """

    status: int = 500
    error_type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        self._told: dict[str, str] = {}

    def tell(self, headers: Mapping[str, str]) -> Self:
        """Answer with these headers too: what had been decided, what a key has left."""
        self._told |= headers
        return self

    def body(self) -> dict[str, Any]:
        """OpenAI's error object (https://platform.openai.com/docs/guides/error-codes)."""
        error = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is None:
            return dict(self._told)
        return {**self._told, "retry-after": str(max(1, math.ceil(self.retry_after_s)))}


class InvalidRequestError(ApiError):
    status = 400
    error_type = "invalid_request_error"


class AuthenticationError(ApiError):
    status = 401
    error_type = "invalid_request_error"
    default_code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "www-authenticate": "Bearer"}


class PermissionDeniedError(ApiError):
    status = 403
    error_type = "invalid_request_error"
    default_code = "permission_denied"


class NotFoundError(ApiError):
    status = 404
    error_type = "invalid_request_error"


class MethodNotAllowedError(ApiError):
    status = 405
    error_type = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "allow": self.allowed}


class BodyTooLargeError(ApiError):
    status = 413
    error_type = "invalid_request_error"
    default_code = "request_too_large"


class TimeoutExceededError(ApiError):
    status = 408
    error_type = "timeout_error"
    default_code = "timeout"


class OverloadedError(ApiError):
    """`code` is the `Refusal` of the decision, unchanged."""

    status = 429
    error_type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class UpstreamError(ApiError):
    status = 502
    error_type = "server_error"
    default_code = "engine_failed"


class UnavailableError(ApiError):
    status = 503
    error_type = "server_error"
    default_code = "no_ready_engine"


class ConfigError(ValueError):
    """The configuration cannot be served. One line: the field, the value, the remedy."""
