"""`/pulse`: a page without data for everybody, and its events for those who may see them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.config.keys import Client
from app.config.schema import AppConfig
from app.errors import NotFoundError, PermissionDeniedError
from deployments.live_feed import LiveFeed

PERMISSION = "pulse"
_PAGE = "index.html"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class LivePage:
    """Args:
    feed: of the board.
    embed_in: origins whose pages may show it in a frame.
    """

    def __init__(self, feed: LiveFeed, embed_in: Sequence[str] = ()) -> None:
        self._feed = feed
        self._files = {
            file.name: (file.read_bytes(), _KINDS[PurePath(file.name).suffix])
            for file in files("dashboards.page").iterdir()
            if PurePath(file.name).suffix in _KINDS
        }
        allowed = " ".join(embed_in) or "'none'"
        self._headers = {
            "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors {allowed}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    def page(self) -> Response:
        return self.asset(_PAGE)

    def asset(self, name: str) -> Response:
        """One of the page's files. Raises NotFoundError."""
        if name not in self._files:
            raise NotFoundError(f"the live page has no file {name}", code="unknown_url")
        body, kind = self._files[name]
        return Response(body, headers=self._headers, media_type=f"{kind}; charset=utf-8")

    def events(self, request: Request, client: Client) -> Response:
        """Server-sent events; the stream ends now and then, and the page comes back.

        Raises:
            PermissionDeniedError: the key may not watch: what it would see is every client's traffic.
            UnavailableError: too many watch.
        """
        if PERMISSION not in client.permissions:
            raise PermissionDeniedError(
                "this key may not watch the live page; the operator can add `pulse` to its `allow`"
            )
        told = self._feed.listen(request.headers.get("last-event-id"))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(told, media_type="text/event-stream", headers=headers)


def page_settings(config: AppConfig) -> dict[str, Any]:
    """What the page draws beside the board's numbers."""
    marks = config.admission.watermarks.kv_usage_ratio
    return {
        "model": config.model.name,
        "low_hit_ratio": config.live_page.low_hit_ratio,
        "kv_usage_marks": {"alert": marks.alert, "refuse_long": marks.refuse_long, "compress": marks.compress},
    }
