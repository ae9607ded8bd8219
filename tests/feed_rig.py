"""A feed as it runs in production, on real sockets, beside an engine that is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from app.state.block_ledger import BlockLedger
from app.state.pulse import ReplicaLoad
from deployments.pulse_messages import FeedEndpoint, PulseMessages
from deployments.pulse_publisher import PulsePublisher
from deployments.pulse_subscriber import PulseSubscriber
from tests.fake_engine_cache import HASHER, FakeEngineCache
from tests.fake_event_publisher import FakeEventPublisher, event_endpoints, patient
from tests.fakes import RecordingView

MESSAGES = PulseMessages(b"the application's key")


class Replica:
    """An engine with its cache, and the publisher beside it.

    Args:
        kept_steps: how many engine steps can be replayed.
    """

    def __init__(self, kept_steps: int = 1000) -> None:
        self._resources = ExitStack()
        endpoints = self._resources.enter_context(event_endpoints())
        self.cache = FakeEngineCache()
        self.load: ReplicaLoad | None = ReplicaLoad()
        self.engine = self._resources.enter_context(closing(FakeEventPublisher(endpoints, kept_steps)))
        self.feed = PulsePublisher(BlockLedger(HASHER, 100_000), endpoints, self.read_load, MESSAGES, "127.0.0.1")
        self._resources.callback(self.feed.close)
        for _ in patient():
            if self.engine.has_new_subscriber():
                return

    def read_load(self) -> ReplicaLoad:
        if self.load is None:
            raise LookupError("the engine does not tell its load")
        return self.load

    @property
    def endpoint(self) -> FeedEndpoint:
        return self.feed.endpoint

    def step(self, lost: bool = False) -> None:
        """One engine step: its events leave, or get lost on the way to the publisher."""
        batch = self.cache.take_batch()
        batch.ts = time.time()
        self.engine.publish(batch, lost)
        self.engine.answer_replay(wait_ms=0)

    def compute(self, *tokens: int) -> None:
        self.cache.compute(tokens)
        self.step()

    def close(self) -> None:
        self._resources.close()


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in patient():
        if condition():
            return


def replayed(replica: Replica) -> None:
    """Wait until the engine has been asked for a replay and has given it."""

    def given() -> bool:
        replica.engine.answer_replay(wait_ms=0)
        return replica.engine.replays > 0

    wait_for(given)


def in_step(view: RecordingView, replica: Replica, replica_id: str = "a") -> bool:
    return view.held.get(replica_id) == replica.cache.held and view.load.get(replica_id) == replica.load


def followed(subscriber: PulseSubscriber, replica: Replica) -> RecordingView:
    view = RecordingView()
    subscriber.follow("a", replica.endpoint, view)
    wait_for(lambda: in_step(view, replica))
    return view
