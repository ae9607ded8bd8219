"""The deployment `PulseBoard`: gathers what engines publish and ingresses report, for the live page and new replicas.

Soft: it decides nothing, and while it is away requests flow. What it knew is then gone with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from ray import serve

from app.config.schema import AppConfig, RoutingConfig
from app.requests import RequestPath
from app.state.board_reports import IngressReport, Prefix, ScalingEvent
from app.state.pulse_board import BoardRules, BoardState
from deployments.application_secret import RayStore, feed_keys
from deployments.path_replicas import follow_replicas
from deployments.pulse_messages import PulseMessages
from deployments.pulse_subscriber import PulseSubscriber
from deployments.scaling_events import PolicyChanges, ReplicaChanges
from deployments.scaling_report import last_decisions

logger = logging.getLogger("ray.serve")

TICK_S = 1.0
MOST_PREFIX_TOKENS = 1_000_000  # kept for new replicas


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """What the board needs to know of the configuration."""

    rules: BoardRules
    routing: RoutingConfig


def board_spec(config: AppConfig) -> BoardSpec:
    rules = BoardRules(
        config.routing.stale_after_s,
        config.live_page.low_hit_ratio,
        config.admission.heavy_hitters.half_life_s,
        MOST_PREFIX_TOKENS,
    )
    return BoardSpec(rules, config.routing)


class PulseBoard:
    """One replica of it serves all ingresses. Its methods do no work that takes long: they share its event loop."""

    async def __init__(self, spec: BoardSpec, hot: Any, cold: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        application = serve.get_replica_context().app_name
        keys = feed_keys(application, RayStore())
        engines = {RequestPath.HOT: hot, RequestPath.COLD: cold}
        self._subscriber = PulseSubscriber(PulseMessages(keys.signing))
        self._replicas = follow_replicas(spec.routing, engines, keys.hashing, self._subscriber)
        self._state = BoardState(spec.rules, uuid.uuid4().hex, time.monotonic, time.time)
        self._came = ReplicaChanges()
        self._ticking = asyncio.create_task(self._tick())
        wanted = PolicyChanges(lambda: last_decisions(application, RayStore()))
        self._polling = asyncio.create_task(self._poll(wanted))

    async def report(self, report: IngressReport) -> list[int]:
        """An ingress's second; returns the keys of prefixes whose content is wanted."""
        return self._state.report(report)

    async def update(self, after: str | None) -> tuple[str, bytes]:
        """What follows the update with that id: the id to ask with next, and a JSON object."""
        update = self._state.update(after)
        return update.id, msgspec.json.encode(update)

    async def hottest(self, engines: RequestPath, max_tokens: int) -> list[Prefix]:
        """What a new replica of these engines should compute first."""
        return self._state.hottest(engines, max_tokens)

    async def check_health(self) -> None:
        if not self._subscriber.alive:
            raise RuntimeError("the board's pulse subscriber has stopped")

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                readings = {path: replicas.readings() for path, replicas in self._replicas.items()}
                self._state.tick(readings)
                for event in self._came({path: len(known) for path, known in readings.items() if known is not None}):
                    self._state.scaled(event)
            except Exception:  # the next second is another one
                logger.exception("a tick of the board failed")
            due_s = max(due_s + TICK_S, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _poll(self, wanted: Callable[[], Sequence[ScalingEvent]]) -> None:
        """Ray's store answers in its own time, in another thread."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                for event in await asyncio.to_thread(wanted):
                    self._state.scaled(event)
            except Exception as error:
                logger.info("nothing is known of what the policy wants: %s", type(error).__name__)

    async def __del__(self) -> None:
        """Serve calls this when the replica stops."""
        if hasattr(self, "_ticking"):
            self._ticking.cancel()
            self._polling.cancel()
        if hasattr(self, "_subscriber"):
            self._subscriber.close()
