"""Real servers on loopback for the tests of the private hop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
from starlette.types import ASGIApp

from deployments.private_server import PrivateServer
from deployments.pulse_subscriber import PulseSubscriber
from tests.fakes import ServeApp
from tests.feed_rig import MESSAGES, Replica


@pytest.fixture
async def serve_app() -> AsyncIterator[ServeApp]:
    """Serves ASGI apps, each on a port of its own, until the test ends."""
    servers: list[PrivateServer] = []

    async def start(app: ASGIApp) -> PrivateServer:
        server = PrivateServer(without_lifespan(app), "127.0.0.1")
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


def without_lifespan(app: ASGIApp) -> ASGIApp:
    """An app that answers the server's start and stop, so that `app` sees requests only."""

    async def answering(scope, receive, send):  # type: ignore[no-untyped-def]  # any ASGI app
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for phase in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{phase}"
            await send({"type": f"lifespan.{phase}.complete"})

    return answering


@pytest.fixture
def replica() -> Iterator[Replica]:
    with closing(Replica()) as running:
        yield running


@pytest.fixture
def subscriber() -> Iterator[PulseSubscriber]:
    with closing(PulseSubscriber(MESSAGES)) as running:
        yield running
