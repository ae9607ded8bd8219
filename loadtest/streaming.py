"""Streams measured inside: one meter that turns reads into a record, and the asyncio client that feeds it.

The client speaks HTTP/1.1 through `httptools` on a bare protocol: it takes the time where the bytes arrive, and a chunk
costs it less than half of the CPU that aiohttp's client needs (19 and 49 microseconds when measured).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from loadtest.records import Outcome, PlannedRequest, RequestRecord
from loadtest.sse import DONE, SseParser, decode_event, error_reason

REFUSAL_STATUSES = frozenset({429, 503})
ERROR_BODY_LIMIT_BYTES = 65_536
MAX_IDLE_S = 2.0  # servers close idle connections (uvicorn after 5 s), and a request must not race with that


class StreamMeter:
    """Fills one record from what arrives. Times are readings of one monotonic clock, in seconds.

    Args:
        origin_s: reading from which latency counts.
    """

    def __init__(self, record: RequestRecord, origin_s: float) -> None:
        self.record = record
        self._origin_s = origin_s
        self._parser = SseParser()
        self._last_token_s: float | None = None
        self._done = False
        self._error: str | None = None
        self._error_body = b""

    def on_status(self, status: int) -> None:
        self.record.status = status

    def on_bytes(self, chunk: bytes, now_s: float) -> None:
        if self.record.status != 200:
            self._error_body = (self._error_body + chunk)[:ERROR_BODY_LIMIT_BYTES]
            return
        for data in self._parser.feed(chunk):
            if data == DONE:
                self._done = True
            else:
                self._on_event(data, now_s)

    def _on_event(self, data: bytes, now_s: float) -> None:
        try:
            event = decode_event(data)
        except ValueError:
            self._error = "stream: not a completion chunk"
            return
        if event.error is not None:
            self._error = f"stream: {error_reason(None, event.error)}"
        if event.carries_tokens:
            self._on_tokens(now_s)
        for choice in event.choices:
            self.record.finish_reason = choice.finish_reason or self.record.finish_reason
        if event.usage is not None:
            self.record.prompt_tokens = event.usage.prompt_tokens
            self.record.output_tokens = event.usage.completion_tokens or 0
            details = event.usage.prompt_tokens_details
            self.record.cached_tokens = (details.cached_tokens or 0) if details else 0

    def _on_tokens(self, now_s: float) -> None:
        if self._last_token_s is None:
            self.record.ttft_s = now_s - self._origin_s
        else:
            self.record.itl_s.append(now_s - self._last_token_s)
        self._last_token_s = now_s

    def on_end(self, now_s: float) -> RequestRecord:
        """The answer's body is complete."""
        record = self.record
        record.e2e_s = now_s - self._origin_s
        if record.status != 200:
            record.outcome = Outcome.REFUSED if record.status in REFUSAL_STATUSES else Outcome.FAILED
            record.reason = error_reason(record.status, self._error_body)
        elif self._error is not None:
            record.outcome, record.reason = Outcome.FAILED, self._error
        elif not self._done:
            record.outcome, record.reason = Outcome.FAILED, "stream: ended without [DONE]"
        elif record.ttft_s is None:
            record.outcome, record.reason = Outcome.FAILED, "stream: no tokens"
        else:
            record.outcome = Outcome.OK
        return record

    def on_failure(self, reason: str, now_s: float) -> RequestRecord:
        """The connection broke or the time is over."""
        self.record.e2e_s = now_s - self._origin_s
        self.record.outcome, self.record.reason = Outcome.FAILED, reason
        return self.record


@dataclass(frozen=True)
class Target:
    """A server under load.

    Args:
        url: scheme, host and port; a path prefix is kept.
        api_key: sent as a bearer token when set.
        class_urls: classes that have a server of their own (two bare engines, one for documents).
    """

    url: str
    api_key: str | None = None
    class_urls: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for url in (self.url, *self.class_urls.values()):
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ValueError(f"target {url!r} is no address: write it as http://127.0.0.1:8000")

    def url_for(self, traffic_class: str) -> str:
        return self.class_urls.get(traffic_class, self.url).rstrip("/")


class _Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self.meter: StreamMeter | None = None
        self.reusable = False
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._ended: asyncio.Future[None] | None = None
        self._now_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def exchange(self, request: bytes, meter: StreamMeter) -> None:
        """Send `request`, feed `meter`, return when the answer is complete. Raises ConnectionError when it is not."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("connection was closed")
        self.meter, self.reusable = meter, False
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._ended

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()  # nobody asked
            return
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(ConnectionError(f"not HTTP/1.1: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(ConnectionResetError(f"connection lost: {error}" if error else "connection closed in the answer"))

    def _finish(self, error: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    # httptools calls these by name.
    def on_headers_complete(self) -> None:
        if self.meter is not None and self._parser is not None:
            self.meter.on_status(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.meter is not None and name.lower() == b"x-kvpulse-path":
            self.meter.record.path = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if self.meter is not None:
            self.meter.on_bytes(body, self._now_s)

    def on_message_complete(self) -> None:
        self.reusable = self._parser is not None and self._parser.should_keep_alive()
        self._parser = None
        self._finish(None)


class StreamingClient:
    """Sends planned requests to one target and measures their streams. Use as `async with`; talks to that target only.

    Args:
        timeout_s: longest a request may take before it counts as failed.
    """

    def __init__(self, target: Target, timeout_s: float = 600.0) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._idle: dict[tuple[str, int], list[_Connection]] = {}

    async def __aenter__(self) -> StreamingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()

    async def send(self, planned: PlannedRequest, record: RequestRecord, origin_s: float) -> RequestRecord:
        """Fill `record`; cancelling leaves it UNFINISHED. Latency counts from `origin_s` (`time.perf_counter`)."""
        meter = StreamMeter(record, origin_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(planned, meter)
        except TimeoutError:
            return meter.on_failure("timeout", time.perf_counter())
        except OSError as error:
            return meter.on_failure(f"connection: {type(error).__name__}", time.perf_counter())
        return meter.on_end(time.perf_counter())

    async def _exchange(self, planned: PlannedRequest, meter: StreamMeter) -> None:
        url = urlsplit(self._target.url_for(planned.traffic_class))
        host, tls = url.hostname or "", url.scheme == "https"
        port = url.port or (443 if tls else 80)
        connection = await self._connect(host, port, tls)
        try:
            await connection.exchange(self._request(f"{host}:{port}", url.path + planned.endpoint, planned.body), meter)
        finally:
            if connection.reusable:
                connection.idle_since_s = time.perf_counter()
                self._idle.setdefault((host, port), []).append(connection)
            else:
                connection.close()

    async def _connect(self, host: str, port: int, tls: bool) -> _Connection:
        idle = self._idle.get((host, port), [])
        while idle:
            connection = idle.pop()
            if not connection.closed and time.perf_counter() - connection.idle_since_s < MAX_IDLE_S:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if tls else None
        _, connection = await loop.create_connection(_Connection, host, port, ssl=context)
        return connection

    def _request(self, host: str, path: str, body: bytes) -> bytes:
        key = f"authorization: Bearer {self._target.api_key}\r\n" if self._target.api_key else ""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{key}content-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body
