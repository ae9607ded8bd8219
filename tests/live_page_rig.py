"""The real page, feed and board state on a server without Ray: a test writes what engines and ingresses tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import uvicorn
from fastapi import Request
from starlette.responses import Response

from app.config.keys import KeyRing
from app.config.schema import AppConfig
from app.requests import RequestPath
from app.state.board_reports import (
    Decision,
    EnginesReport,
    IngressReport,
    PathReport,
    Prefix,
    PrefixCount,
    ScalingEvent,
)
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.pulse_board import BoardRules, BoardState
from deployments.board_client import BoardAwayError
from deployments.http_errors import openai_shaped_app
from deployments.incoming import Intake
from deployments.live_feed import LiveFeed
from deployments.live_page import LivePage, page_settings
from tests.fakes import FakeClock

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
NOON_S = 1_764_504_000.0
REPLICAS = {HOT: ("hot0a1b2c3d", "hot1f9e8d7c"), COLD: ("cold5a6b7c8d",)}
RULES = BoardRules(stale_after_s=1.0, low_hit_ratio=0.75, prefix_half_life_s=300.0, prefix_tokens=10_000)


class ScriptedBoard:
    """A board whose seconds pass when told. Every replica looks up 1,000 tokens in each.

    Args:
        began_s: what its wall clock says at first.
    """

    def __init__(self, incarnation: str = "first", began_s: float = NOON_S) -> None:
        self.clock, self.wall = FakeClock(), FakeClock(began_s)
        self.state = BoardState(RULES, incarnation, self.clock, self.wall)
        self.loads = {name: ReplicaLoad(kv_blocks=1000) for names in REPLICAS.values() for name in names}
        self.silent: set[str] = set()
        self.away = False

    async def update(self, after: str | None) -> tuple[str, bytes]:
        if self.away:
            raise BoardAwayError("TimeoutError")
        update = self.state.update(after)
        return update.id, msgspec.json.encode(update)

    def second(self, hit_ratio: Mapping[RequestPath, float] | None = None, **load: Any) -> None:
        """One more second, in which engines hit so much and report this load."""
        self.clock.advance(1.0)
        self.wall.advance(1.0)
        for engines, names in REPLICAS.items():
            hits = round(1000 * (hit_ratio or {}).get(engines, 0.9))
            for name in names:
                before = self.loads[name]
                self.loads[name] = msgspec.structs.replace(
                    before,
                    prefix_query_tokens=before.prefix_query_tokens + 1000,
                    prefix_hit_tokens=before.prefix_hit_tokens + hits,
                    **load,
                )
        self.state.tick({engines: [self._reading(name) for name in names] for engines, names in REPLICAS.items()})

    def report(self, path: RequestPath = HOT, level: int = 0, queued: int = 0, **decision: Any) -> None:
        """One ingress tells of one request."""
        told = Decision(
            path=path,
            engines=path.engines,
            **{
                "reason": "short_prompt_and_output",
                "priority": path.priority(),
                "admission": "home",
                "outcome": "answered",
                "replica": REPLICAS[path.engines][0],
                "routing": "prefix_hit",
                "prompt_tokens": 1024,
                "matched_tokens": 960,
                "ttft_s": 0.08,
                **decision,
            },
        )
        times = [] if told.ttft_s is None else [told.ttft_s]
        paths = {path: PathReport({told.outcome: 1}, times)}
        engines = {name: EnginesReport(queued, level, "kv_usage_ratio" if level else None) for name in (HOT, COLD)}
        prefix = PrefixCount(HOT, 7, 1, Prefix(tuple(range(512))))
        self.state.report(IngressReport("ingress", paths, engines, [told], [prefix]))

    def scaled(self, before: int, after: int, reason: str = "started") -> None:
        self.state.scaled(ScalingEvent(HOT, before, after, reason))

    def _reading(self, name: str) -> ReplicaReading:
        if name in self.silent:
            return ReplicaReading(name, self.loads[name], 7.0)
        return ReplicaReading(name, self.loads[name], 0.1)


class PageServer:
    """Serves one board in a thread. Started anew on the same port, it is a server that has restarted."""

    def __init__(self, board: ScriptedBoard, config: AppConfig, key_ring: KeyRing | None = None, port: int = 0) -> None:
        self._intake = Intake(config, key_ring, frozenset({"m"}))
        self._board = board
        self._feed: LiveFeed | None = None
        self._config = config
        settings = uvicorn.Config(
            self._app(), host="127.0.0.1", port=port, log_level="warning", access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def _app(self) -> Any:
        http = openai_shaped_app()

        @http.get("/pulse")
        async def page() -> Response:
            return self._page.page()

        @http.get("/pulse/events")
        async def events(request: Request) -> Response:
            return self._page.events(request, self._intake.authenticate(request))

        @http.get("/pulse/{name}")
        async def asset(name: str) -> Response:
            return self._page.asset(name)

        return http

    @property
    def _page(self) -> LivePage:
        if self._feed is None:
            live = self._config.live_page
            self._feed = LiveFeed(self._board.update, page_settings(self._config), live.max_listeners, poll_s=0.05)
        return LivePage(self._feed, self._config.live_page.embed_in)

    def start(self) -> str:
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.01)
        self.port = int(self._server.servers[0].sockets[0].getsockname()[1])
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.force_exit = True  # open streams are cut, as by a crash
        self._server.should_exit = True
        self._thread.join()


async def collected(events: Any, count: int) -> list[bytes]:
    """The first events of a stream."""
    got = []
    async with asyncio.timeout(10):
        async for event in events:
            got.append(event)
            if len(got) == count:
                break
    await events.aclose()
    return got
