"""Stand-ins that keep to the real protocols: a clock, a Serve handle with its leases, engines that misbehave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.decisions.routing import RoutingDecision
from app.state.cluster_view import ClusterView
from app.state.pulse import CacheChange, ReplicaLoad
from deployments.private_server import PrivateServer
from deployments.routed_request import RoutedRequest

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
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Any:
        return self.ended.__await__()

    def cancel(self) -> None:
        self.ended.cancel()


class FirstOfAll(random.Random):
    """Chance that always takes the first."""

    def choice(self, options: Sequence[Any]) -> Any:  # type: ignore[override]  # narrower, as the callers need it
        return options[0]


def routed(
    excluded: Collection[str] = (), view: ClusterView | None = None, decision: RoutingDecision | None = None
) -> RoutedRequest:
    """Without `decision` it takes the first replica that is offered. Debits of 10 tokens go to `view`."""
    view = view or ClusterView(FakeClock(), stale_after_s=1.0)
    return RoutedRequest(lambda: decision, lambda made: view.debit(made.replica_id, 10, 10), excluded, FirstOfAll())


class FakeMethod:
    """`handle.attend`: `choose_replica` asks the request, and waits while it finds no replica. `log` tells what
    happened, in order.

    Args:
        attend: what the companion call does on the replica; by default it ends at once.
        full: ids of replicas that may be chosen and then give no slot; the next one gives it.
        may_reserve: replicas answer the question for a slot once this is set; by default at once.
    """

    def __init__(
        self,
        replicas: Sequence[FakeReplica],
        attend: Callable[[FakeReplica, FakeCompanion], None] | None = None,
        full: Collection[str] = (),
    ) -> None:
        self.log: list[str] = []
        self.may_reserve = asyncio.Event()
        self.may_reserve.set()
        self.replicas = replicas
        self._attend = attend or (lambda _, companion: companion.ended.set_result(None))
        self._full = full

    @asynccontextmanager
    async def choose_replica(self, routed: RoutedRequest) -> AsyncIterator[FakeReplica]:
        candidates = {replica.replica_id: replica for replica in self.replicas}
        name = routed.choose(candidates, lambda _: False)
        await self.may_reserve.wait()
        if name in self._full:
            name = next(other for other in candidates if other not in self._full)
        if name is None:
            await asyncio.Event().wait()
        assert name is not None
        self.log.append(f"reserved {name}")
        try:
            yield candidates[name]
        finally:
            self.log.append(f"released {name}")

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
