"""`/pulse`: a page without data for everybody, and its events for those who may see them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.config.keys import Client
from app.config.schema import AppConfig
from app.errors import NotFoundError, PermissionDeniedError
from deployments.live_feed import LiveFeed

PERMISSION = "pulse"
_PAGE = "index.html"
_KINDS = {_PAGE: "text/html", "page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class LivePage:
    """Args:
    feed: of the board.
    embed_in: origins whose pages may show it in a frame.
    """

    def __init__(self, feed: LiveFeed, embed_in: Sequence[str] = ()) -> None:
        folder = files("dashboards.page")
        self._feed = feed
        self._bodies = {name: folder.joinpath(name).read_bytes() for name in _KINDS}
        self._headers = {
            "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors {' '.join(embed_in) or chr(39) + 'none' + chr(39)}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }

    def page(self) -> Response:
        return self.asset(_PAGE)

    def asset(self, name: str) -> Response:
        """One of the page's files. Raises NotFoundError."""
        if name not in self._bodies:
            raise NotFoundError(f"no file {name} of the live page", code="unknown_url")
        return Response(self._bodies[name], headers=self._headers, media_type=f"{_KINDS[name]}; charset=utf-8")

    def events(self, request: Request, client: Client) -> Response:
        """Server-sent events that do not end of themselves.

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
