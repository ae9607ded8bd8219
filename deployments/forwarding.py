"""The HTTP hop from the ingress to an engine replica: open, stream, tell a lost engine from a refusal."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from app.errors import UpstreamError
from deployments.engine_errors import EngineLostError, StreamBrokenError, api_error
from deployments.leases import Lease
from deployments.private_server import ENGINE_DEAD_HEADER, LEASE_HEADER

_NO_HEADERS: Mapping[str, str] = {}
# How much of a first event is looked at to tell an error from an answer.
_ERROR_EVENT_PREFIXES = (b'data: {"error"', b"event: error")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An answer that has begun. `chunks` yields what has arrived, as soon as it has, starting with the first bytes."""

    status: int
    content_type: str
    chunks: AsyncIterator[bytes]

    @property
    def streamed(self) -> bool:
        return self.content_type.startswith("text/event-stream")


class EngineConnections:
    """Pooled connections from one ingress to all engine replicas.

    Args:
        silence_timeout_s: longest wait for the next bytes of an answer.
    """

    def __init__(self, silence_timeout_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=silence_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Idle connections go well before the engine's server would close them.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, auto_decompress=False)
        return self._session

    async def open(
        self, lease: Lease, url: str, body: bytes, trace_headers: Mapping[str, str] = _NO_HEADERS
    ) -> tuple[aiohttp.ClientResponse, EngineAnswer]:
        """Send the request and wait for the first bytes of its answer. The caller closes the response.

        Raises:
            EngineLostError: no answer, or its engine is dead; nothing was sent to the client.
            ApiError: the engine refused the request.
        """
        headers = {
            "authorization": f"Bearer {lease.token}",
            "content-type": "application/json",
            LEASE_HEADER: lease.id,
            "x-request-id": lease.id,
            **trace_headers,
        }
        try:
            response = await self._client().post(f"http://{lease.address}{url}", data=body, headers=headers)
        except aiohttp.SocketTimeoutError:
            raise _silent() from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLostError(type(error).__name__, suspect=True) from error
        try:
            return response, await self._begin(response)
        except BaseException:
            response.close()
            raise

    async def _begin(self, response: aiohttp.ClientResponse) -> EngineAnswer:
        content_type = response.headers.get("content-type", "application/json")
        try:
            if response.status == 200 and content_type.startswith("text/event-stream"):
                first = await response.content.readany()
                _refuse_error_event(first)
                return EngineAnswer(200, content_type, self._stream(response, first))
            whole = await response.read()
        except aiohttp.SocketTimeoutError:
            raise _silent() from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLostError(type(error).__name__, suspect=True) from error
        if response.status >= 500:
            raise EngineLostError(f"status {response.status}", suspect=ENGINE_DEAD_HEADER in response.headers)
        if response.status >= 400:
            raise api_error(response.status, _json_or_none(whole))
        return EngineAnswer(response.status, content_type, _once(whole))

    async def _stream(self, response: aiohttp.ClientResponse, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise StreamBrokenError(type(error).__name__) from error


def _silent() -> UpstreamError:
    return UpstreamError("the engine did not begin to answer in time", code="engine_timeout")


def _refuse_error_event(first: bytes) -> None:
    """vLLM may answer 200 and then an error as the first event: nothing has been sent on yet, so it is one again."""
    if not first:
        raise EngineLostError("empty stream", suspect=True)
    if not first.startswith(_ERROR_EVENT_PREFIXES):
        return
    line = next((line for line in first.splitlines() if line.startswith(b"data: ")), b"")
    body = _json_or_none(line.removeprefix(b"data: "))
    error = body.get("error") if isinstance(body, dict) else None
    status = error.get("code") if isinstance(error, dict) else None
    if isinstance(status, int) and 400 <= status < 500:
        raise api_error(status, body)
    raise EngineLostError("error event", suspect=False)


def _json_or_none(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


async def _once(whole: bytes) -> AsyncIterator[bytes]:
    yield whole
