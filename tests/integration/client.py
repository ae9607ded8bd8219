"""A plain HTTP client that keeps everything an answer consists of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.integration.configs import MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
PATH_HEADER = "x-kvpulse-path"


@dataclass
class Reply:
    """One answer, as far as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replica(self) -> str:
        return self.headers["x-kvpulse-replica"]

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event, in order."""
        blocks = self.body.decode().split("\n\n")
        assert blocks[-1] == "", f"the stream ends inside an event: {blocks[-1][-200:]!r}"
        return [block.partition("data: ")[2] for block in blocks[:-1]]

    @property
    def chunks(self) -> list[Any]:
        """The events before `[DONE]`, parsed."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def complete(self) -> bool:
        """`[DONE]` came once, last, and no error before it."""
        events = self.events
        return events.count("[DONE]") == 1 and events[-1] == "[DONE]" and "error" not in self.chunks[-1]

    @property
    def text(self) -> str:
        """Of a completion, streamed or not."""
        choices = [choice for chunk in self.chunks for choice in chunk["choices"]] if self.streamed else None
        return "".join(choice["text"] for choice in (self.json["choices"] if choices is None else choices))

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


def open_session() -> aiohttp.ClientSession:
    """Without deadlines of its own: the machine may be busy, and pytest ends what hangs."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))


class Ask:
    """A request that runs as a task from the moment it is made."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        self.began = asyncio.Event()
        self._headers = dict(headers or {})
        self.task: asyncio.Task[Reply] = asyncio.create_task(self._run(session, url, body))

    async def _run(self, session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Reply:
        async with session.post(url, json=body, headers=self._headers) as response:
            reply = Reply(response.status, response.headers)
            async for chunk in response.content.iter_any():
                reply.body += chunk
                self.began.set()
            return reply


def completion(max_tokens: int, *, path: str | None = None, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """A completion request that the tiny model answers with exactly `max_tokens` tokens, the same ones each time."""
    model = MODEL if path is None else f"{MODEL}:{path}"
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "stream": stream}
    return body | {"temperature": 0, "ignore_eos": True} | fields
