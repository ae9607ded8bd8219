"""PulseBoard as its callers see it: it may be away, and nobody waits long for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from app.requests import RequestPath
from app.state.board_reports import IngressReport, Prefix

CALL_TIMEOUT_S = 3.0


class BoardAwayError(Exception):
    """The board did not answer in time, or failed. Requests flow without it."""


class BoardClient:
    """Args:
    handle: of the `PulseBoard` deployment.
    """

    def __init__(self, handle: Any, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    async def report(self, report: IngressReport) -> list[int]:
        """Tell it; returns the keys of prefixes whose content it wants. Raises BoardAwayError, like the others."""
        return list(await self._call("report", report))

    async def update(self, after: str | None) -> tuple[str, bytes]:
        """What follows the update with that id: the id to ask with next, and a JSON object."""
        update_id, body = await self._call("update", after)
        return str(update_id), bytes(body)

    async def hottest(self, engines: RequestPath, max_tokens: int) -> Sequence[Prefix]:
        """What a new replica of these engines should compute."""
        return list(await self._call("hottest", engines, max_tokens))

    async def _call(self, method: str, *arguments: Any) -> Any:
        response = getattr(self._handle, method).remote(*arguments)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:  # whatever it is, it is the board's trouble alone
            response.cancel()
            raise BoardAwayError(type(error).__name__) from error
