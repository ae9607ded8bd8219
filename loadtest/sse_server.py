"""A server that does nothing but stream: what a generator reaches against it is the generator's own ceiling.

Answers every POST with as many chunks as its `max_tokens`, and GET /v1/models.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import cast

import click
import uvloop

MODEL = "ceiling"
CONTEXT_TOKENS = 8192
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def _frame(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(content: dict[str, object]) -> bytes:
    common = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
    }
    return _frame(b"data: " + json.dumps({**common, **content}).encode() + b"\n\n")


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = _event({"choices": [{"index": 0, "delta": {"content": " word"}, "text": " word", "finish_reason": None}]})
END = _event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "length"}]})


class StreamServer(asyncio.Protocol):
    """One connection. `gap_s` is the pause between two chunks; 0 sends each in its own turn of the event loop."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._received = b""
        self._answer: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        if head.startswith(b"GET "):
            self._send_json({"object": "list", "data": [{"id": MODEL, "max_model_len": CONTEXT_TOKENS}]})
            return
        request = json.loads(body)
        if request.get("stream"):
            self._answer = asyncio.create_task(self._stream(request.get("max_tokens", 16)))
        else:
            usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 1}
            self._send_json({"choices": [{"index": 0, "text": " word", "finish_reason": "length"}], "usage": usage})

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None:
            self._answer.cancel()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _send_json(self, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)

    async def _stream(self, tokens: int) -> None:
        self._write(STREAM_HEAD)
        for _ in range(tokens):
            self._write(TOKEN)
            await asyncio.sleep(self._gap_s)
        usage = {"prompt_tokens": 1, "completion_tokens": tokens}
        self._write(END + _event({"choices": [], "usage": usage}) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(port: int, gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: StreamServer(gap_s), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


@click.command(help=__doc__)
@click.option("--port", type=int, required=True, help="On loopback.")
@click.option("--gap", "gap_s", type=float, default=0.0, show_default=True, help="Seconds between chunks.")
def main(port: int, gap_s: float) -> None:
    uvloop.run(serve(port, gap_s))


if __name__ == "__main__":
    main()
