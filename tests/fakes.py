"""Stand-ins that keep to the real protocols: a clock, a Serve handle with its leases, engines that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.state.pulse import CacheChange, ReplicaLoad
from deployments.private_server import PrivateServer

# config.json of a model that the configuration code can reason about; no weights belong to it.
TINY_LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}


class FakeClock:
    """Monotonic seconds that pass only when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class FakeReplica:
    """What a selection tells of the chosen replica."""

    replica_id: str
    address: str = "127.0.0.1:1"
    token: str = "token"

    @property
    def replica_metadata(self) -> dict[str, str]:
        return {"address": self.address, "token": self.token}


class FakeCompanion:
    """The response of a dispatched call: awaitable, cancellable."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Any:
        return self.ended.__await__()

    def cancel(self) -> None:
        self.ended.cancel()


class FakeMethod:
    """`handle.attend`: `choose_replica` takes the first of `replicas` that is not excluded, and waits while there is
    none. `log` tells what happened, in order.

    Args:
        attend: what the companion call does on the replica; by default it ends at once.
    """

    def __init__(
        self, replicas: Sequence[FakeReplica], attend: Callable[[FakeReplica, FakeCompanion], None] | None = None
    ) -> None:
        self.log: list[str] = []
        self._replicas = replicas
        self._attend = attend or (lambda _, companion: companion.ended.set_result(None))

    @asynccontextmanager
    async def choose_replica(self, excluded: frozenset[str]) -> AsyncIterator[FakeReplica]:
        usable = [replica for replica in self._replicas if replica.replica_id not in excluded]
        if not usable:
            await asyncio.Event().wait()
        self.log.append(f"reserved {usable[0].replica_id}")
        try:
            yield usable[0]
        finally:
            self.log.append(f"released {usable[0].replica_id}")

    def dispatch(self, replica: FakeReplica, lease_id: str) -> FakeCompanion:
        companion = FakeCompanion()
        companion.ended.add_done_callback(lambda _: self.log.append(f"companion ended on {replica.replica_id}"))
        self._attend(replica, companion)
        return companion


class FakeHandle:
    """A deployment handle whose one method is `attend`."""

    def __init__(self, attend: FakeMethod) -> None:
        self.attend = attend


ServeApp = Callable[[ASGIApp], Awaitable[PrivateServer]]


def events(*data: str, kind: str = "text/event-stream") -> ASGIApp:
    async def stream() -> AsyncIterator[str]:
        for item in data:
            yield f"data: {item}\n\n"

    return StreamingResponse(stream(), media_type=kind)


def breaking_after(*parts: bytes, kind: str) -> ASGIApp:
    """Sends the parts, then breaks the connection."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        raise ConnectionAbortedError

    return app


def silent_after(*parts: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if parts:
            kind = (b"content-type", b"text/event-stream")
            await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    return app


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until something holds; pytest's timeout ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - no event tells of what servers and fakes do
        await asyncio.sleep(0.005)


class RecordingView:
    """What a router would know of each replica: the hashes it holds, and its load where that is known.

    `revision` counts calls, so that a test can wait for the next one.
    """

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {}
        self.load: dict[str, ReplicaLoad] = {}
        self.revision = 0

    def apply(self, replica_id: str, change: CacheChange, load: ReplicaLoad) -> None:
        before = set() if change.cleared else self.held[replica_id]
        self.held[replica_id] = before - set(change.removed) | set(change.stored)
        self.load[replica_id] = load
        self.revision += 1

    def replace(self, replica_id: str, hashes: Iterable[int], load: ReplicaLoad) -> None:
        self.held[replica_id] = set(hashes)
        self.load[replica_id] = load
        self.revision += 1

    def disconnected(self, replica_id: str) -> None:
        self.held[replica_id] = set()
        self.load.pop(replica_id, None)
        self.revision += 1
