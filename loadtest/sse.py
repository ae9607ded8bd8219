"""Server-sent events of the OpenAI API: bytes in any cut to events, events to what is measured of them."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class SseParser:
    """Collects bytes and yields the data of each complete event.

    Events may be cut anywhere, end their lines with LF or CRLF, span several `data:` lines (joined by a newline) and
    hold comments (`:`) and fields we do not need.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, in order."""
        text = self._pending + chunk
        if b"\r" in text:
            held_back = text.endswith(b"\r")  # its LF may come with the next chunk
            text = text[:-1].replace(b"\r\n", b"\n") + b"\r" if held_back else text.replace(b"\r\n", b"\n")
        *complete, self._pending = text.split(b"\n\n")
        return [data for event in complete if (data := _data_of(event))]


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data:") and b"\n" not in event:  # nearly every event
        return event[5:].strip()
    lines = (line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(lines).strip()


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def carries_tokens(self) -> bool:
        """Text, reasoning or a tool call; or an empty delta that neither opens nor ends the answer, which is what a
        token looks like whose bytes are no whole character yet."""
        if self.delta is None:
            return bool(self.text) or self.finish_reason is None
        delta = self.delta
        if delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls:
            return True
        return delta.role is None and self.finish_reason is None


class StreamEvent(msgspec.Struct):
    """One chunk of a streamed chat or text completion; unknown fields are ignored."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    @property
    def carries_tokens(self) -> bool:
        return any(choice.carries_tokens for choice in self.choices)


_decoder = msgspec.json.Decoder(StreamEvent)


def decode_event(data: bytes) -> StreamEvent:
    """Raises `msgspec.DecodeError` (a ValueError) when `data` is not such a chunk."""
    return _decoder.decode(data)


def error_reason(status: int | None, body: bytes | Any) -> str:
    """`429 kv_cache_high`: status and the error's own code, else its type, else nothing more."""
    error = body
    if isinstance(body, bytes):
        try:
            error = msgspec.json.decode(body)
        except msgspec.DecodeError:
            error = None
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    code = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    known = [str(part) for part in (status, code) if part is not None and str(part) != ""]
    return known[0] if len(known) == 2 and known[0] == known[1] else " ".join(known)
