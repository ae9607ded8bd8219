"""Every error of every route, in OpenAI's shape."""

from __future__ import annotations

import logging
import traceback

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ApiError, MethodNotAllowedError, NotFoundError

logger = logging.getLogger("ray.serve")

UNFORESEEN = "internal_error"  # the code of what nobody foresaw


def error_response(error: ApiError) -> Response:
    """The HTTP answer to an error."""
    headers = {"content-type": "application/json", **error.headers()}
    return Response(msgspec.json.encode(error.body()), error.status, headers)


def openai_shaped_app() -> FastAPI:
    """An empty app whose errors are OpenAI's. It has no documentation pages: bodies are vLLM's to define."""
    http = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    http.add_exception_handler(ApiError, _api_error)  # type: ignore[arg-type]  # called with nothing else
    http.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]  # called with nothing else
    http.add_middleware(UnexpectedErrors)
    return http


async def _api_error(_: Request, error: ApiError) -> Response:
    return error_response(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return error_response(NotFoundError(f"no route {request.method} {request.url.path}", code="unknown_url"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} is not allowed on {request.url.path}; use {allowed}"
        return error_response(MethodNotAllowedError(message, allowed))
    refusal = ApiError(str(error.detail))
    refusal.status = error.status_code
    return error_response(refusal)


class UnexpectedErrors:
    """ASGI middleware for what nobody foresaw: the client gets a 500, the log the kind of error and where it happened.

    Not its message: those of foreign errors may quote the prompt.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("unexpected %s in the ingress at\n%s", type(error).__name__, where)
            if not started:
                failure = ApiError("an unexpected error in the ingress; its log has the kind", code=UNFORESEEN)
                await error_response(failure)(scope, receive, send)
