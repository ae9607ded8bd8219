"""Publisher and subscriber over real sockets: what the router sees becomes what the engine holds, whatever happens."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from app.state.block_ledger import BlockLedger
from app.state.pulse import ReplicaLoad
from deployments.pulse_messages import FeedEndpoint, PulseMessages
from deployments.pulse_publisher import MAX_WAITING_REQUESTS, PulsePublisher
from deployments.pulse_subscriber import PulseSubscriber
from tests.fake_engine_cache import HASHER, FakeEngineCache, cache_actions, perform
from tests.fake_event_publisher import FakeEventPublisher, event_endpoints, patient
from tests.fake_network import PulseRelay, TcpRelay
from tests.fakes import RecordingView

MESSAGES = PulseMessages(b"the application's key")


class Replica:
    """An engine with its cache, and the publisher beside it."""

    def __init__(self, messages: PulseMessages = MESSAGES) -> None:
        self._resources = ExitStack()
        endpoints = self._resources.enter_context(event_endpoints())
        self.cache = FakeEngineCache()
        self.load: ReplicaLoad | None = ReplicaLoad()
        self.engine = self._resources.enter_context(closing(FakeEventPublisher(endpoints)))
        self.feed = PulsePublisher(BlockLedger(HASHER, 100_000), endpoints, self.read_load, messages, "127.0.0.1")
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


@pytest.fixture
def replica() -> Iterator[Replica]:
    with closing(Replica()) as running:
        yield running


@pytest.fixture
def subscriber() -> Iterator[PulseSubscriber]:
    with closing(PulseSubscriber(MESSAGES)) as running:
        yield running


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in patient():
        if condition():
            return


def in_step(view: RecordingView, replica: Replica, replica_id: str = "a") -> bool:
    return view.held.get(replica_id) == replica.cache.held and view.load.get(replica_id) == replica.load


def followed(subscriber: PulseSubscriber, replica: Replica) -> RecordingView:
    view = RecordingView()
    subscriber.follow("a", replica.endpoint, view)
    wait_for(lambda: in_step(view, replica))
    return view


def test_a_late_joiner_knows_what_the_engine_holds(replica: Replica, subscriber: PulseSubscriber) -> None:
    replica.compute(*range(40))
    view = followed(subscriber, replica)
    assert len(view.held["a"]) == 10


def test_changes_and_load_follow(replica: Replica, subscriber: PulseSubscriber) -> None:
    view = followed(subscriber, replica)
    replica.compute(*range(40))
    replica.load = ReplicaLoad(running_requests=3, kv_usage_ratio=0.5)
    wait_for(lambda: in_step(view, replica))
    replica.cache.evict(0)
    replica.step()
    wait_for(lambda: in_step(view, replica))
    assert subscriber.counts.requests == 1


def test_a_reset_is_told_before_the_engine_tells_it(replica: Replica, subscriber: PulseSubscriber) -> None:
    replica.compute(*range(40))
    view = followed(subscriber, replica)
    replica.cache.clear()
    replica.feed.forget_all()
    wait_for(lambda: in_step(view, replica))


def test_a_replica_that_goes_predicts_no_hit_and_its_neighbour_stays(subscriber: PulseSubscriber) -> None:
    with closing(Replica()) as going, closing(Replica()) as staying:
        view = RecordingView()
        for replica_id, replica in (("going", going), ("staying", staying)):
            replica.compute(*range(40))
            subscriber.follow(replica_id, replica.endpoint, view)
            wait_for(lambda replica_id=replica_id, replica=replica: in_step(view, replica, replica_id))  # type: ignore[misc]
        going.close()
        wait_for(lambda: "going" not in view.load)
        assert view.held["going"] == set()
        assert in_step(view, staying, "staying")


def test_a_replica_that_is_not_followed_any_more_is_not_told_of(replica: Replica, subscriber: PulseSubscriber) -> None:
    view = followed(subscriber, replica)
    done = threading.Event()
    subscriber.unfollow("a")
    subscriber.unfollow("never followed")
    subscriber.follow("b", replica.endpoint, _Telling(done))
    assert done.wait(10)
    before = view.revision
    replica.compute(*range(40))
    wait_for(lambda: replica.feed.ledger_counts.stored == 10)
    replica.feed.forget_all()
    assert view.revision == before


def test_a_broken_connection_is_mended(replica: Replica, subscriber: PulseSubscriber) -> None:
    replica.compute(*range(40))
    with closing(TcpRelay(replica.endpoint.pulses)) as relay:
        view = RecordingView()
        subscriber.follow("a", replace(replica.endpoint, pulses=relay.address), view)
        wait_for(lambda: in_step(view, replica))
        relay.cut()
        wait_for(lambda: subscriber.counts.disconnects == 1)
        replica.compute(*range(40, 80))
        wait_for(lambda: in_step(view, replica))


def test_another_publisher_at_the_same_address_is_another_cache(replica: Replica, subscriber: PulseSubscriber) -> None:
    replica.compute(*range(40))
    with (
        closing(TcpRelay(replica.endpoint.pulses)) as pulses,
        closing(TcpRelay(replica.endpoint.snapshots)) as snapshots,
        closing(Replica()) as successor,
    ):
        view = RecordingView()
        subscriber.follow("a", FeedEndpoint(pulses.address, snapshots.address, 4), view)
        wait_for(lambda: in_step(view, replica))
        successor.compute(*range(100, 120))
        pulses.target, snapshots.target = successor.endpoint.pulses, successor.endpoint.snapshots
        replica.close()
        wait_for(lambda: in_step(view, successor))


def test_pulses_of_another_incarnation_are_noticed_without_a_disconnect(
    replica: Replica, subscriber: PulseSubscriber
) -> None:
    with closing(Replica()) as successor:
        successor.compute(*range(40))
        queued: list[bytes] = []
        with closing(PulseRelay(replica.endpoint.pulses, lambda frame: [*take(queued), frame])) as relay:
            view = RecordingView()
            subscriber.follow("a", replace(replica.endpoint, pulses=relay.address), view)
            wait_for(lambda: in_step(view, replica))
            queued.append(one_pulse(successor))
            wait_for(lambda: subscriber.counts.following.restarts >= 1)
            wait_for(lambda: in_step(view, replica))


def test_tampered_and_repeated_pulses_are_dropped_and_counted(replica: Replica, subscriber: PulseSubscriber) -> None:
    def meddle(frame: bytes) -> list[bytes]:
        return [frame[:-1] + bytes([frame[-1] ^ 1]), frame, frame]

    with closing(PulseRelay(replica.endpoint.pulses, meddle)) as relay:
        view = RecordingView()
        subscriber.follow("a", replace(replica.endpoint, pulses=relay.address), view)
        replica.compute(*range(40))
        wait_for(lambda: in_step(view, replica))
        wait_for(lambda: subscriber.counts.unsigned >= 2 and subscriber.counts.following.outdated >= 2)
        assert subscriber.counts.following.gaps == 0


def test_a_subscriber_with_another_key_learns_nothing(replica: Replica) -> None:
    view = RecordingView()
    with closing(PulseSubscriber(PulseMessages(b"another key"))) as stranger:
        stranger.follow("a", replica.endpoint, view)
        wait_for(lambda: replica.feed.counts.refused >= 1)
        wait_for(lambda: stranger.counts.unsigned >= 1)
    assert view.revision == 0
    assert replica.feed.counts.snapshots == 0


def test_a_flood_of_requests_makes_few_snapshots(replica: Replica, subscriber: PulseSubscriber) -> None:
    view = followed(subscriber, replica)
    flooding = replica.feed.counts
    context: zmq.Context[Any] = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(3)]
    for dealer in sockets:
        dealer.connect(replica.endpoint.snapshots)
        for _ in range(500):
            dealer.send(MESSAGES.request(bytes(16)))
            dealer.send(b"nonsense")
    wait_for(lambda: flooding.refused == 1500)
    wait_for(lambda: flooding.snapshots >= 4)
    assert flooding.snapshots < MAX_WAITING_REQUESTS
    replica.compute(*range(40))
    wait_for(lambda: in_step(view, replica))
    for dealer in sockets:
        dealer.close(linger=0)
    context.term()


def test_a_subscriber_that_never_reads_holds_up_nobody_and_misses_what_does_not_fit(
    replica: Replica, subscriber: PulseSubscriber
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    sleeper = context.socket(zmq.SUB)
    sleeper.set_hwm(1)
    sleeper.setsockopt(zmq.RCVBUF, 4096)
    sleeper.subscribe(b"")
    sleeper.connect(replica.endpoint.pulses)
    assert sleeper.poll(5000)
    view = followed(subscriber, replica)
    published = 20_000
    for _ in range(published):
        replica.feed.forget_all()
    wait_for(lambda: replica.feed.counts.pulses > published)
    replica.compute(*range(40))
    wait_for(lambda: in_step(view, replica))
    received = 0
    while sleeper.poll(200):
        sleeper.recv()
        received += 1
    assert received < published / 2
    assert (replica.feed.alive, replica.feed.faults) == (True, 0)
    sleeper.close(linger=0)
    context.term()


def test_a_load_that_cannot_be_read_stops_the_pulses_but_not_the_publisher(
    replica: Replica, subscriber: PulseSubscriber
) -> None:
    view = followed(subscriber, replica)
    load, replica.load = replica.load, None
    wait_for(lambda: replica.feed.faults >= 2)
    replica.compute(*range(40))
    wait_for(lambda: replica.feed.ledger_counts.stored == 10)
    assert view.held["a"] == set()
    replica.load = load
    wait_for(lambda: in_step(view, replica))


def test_a_view_that_fails_costs_itself_a_snapshot_and_the_others_nothing(
    replica: Replica, subscriber: PulseSubscriber
) -> None:
    class FailingOnce(RecordingView):
        failed = False

        def apply(self, *arguments: Any) -> None:
            if not self.failed:
                self.failed = True
                raise KeyError("a view with a fault")
            super().apply(*arguments)

    failing = FailingOnce()
    subscriber.follow("a", replica.endpoint, failing)
    healthy = RecordingView()
    subscriber.follow("b", replica.endpoint, healthy)
    wait_for(lambda: in_step(failing, replica) and in_step(healthy, replica, "b"))
    replica.compute(*range(40))
    wait_for(lambda: failing.failed and in_step(failing, replica) and in_step(healthy, replica, "b"))
    assert (subscriber.faults, subscriber.alive) == (1, True)


def test_lost_engine_events_are_replayed_or_everything_is_forgotten(
    replica: Replica, subscriber: PulseSubscriber
) -> None:
    view = followed(subscriber, replica)
    replica.cache.compute(range(40))
    replica.step(lost=True)
    replica.cache.compute(range(80))
    replica.step()
    assert replica.engine.answer_replay()
    wait_for(lambda: in_step(view, replica))
    assert replica.feed.counts.lost_streams == 0


def test_closing_ends_threads_and_frees_the_address(replica: Replica, subscriber: PulseSubscriber) -> None:
    followed(subscriber, replica)
    subscriber.close()
    replica.feed.close()
    assert not subscriber.alive and not replica.feed.alive
    context: zmq.Context[Any] = zmq.Context()
    again = context.socket(zmq.PUB)
    again.bind(replica.endpoint.pulses)
    again.close()
    context.term()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(cache_actions, st.booleans()), min_size=5, max_size=40), st.integers(2, 5))
def test_over_a_lossy_network_the_view_converges_to_the_truth(
    steps: list[tuple[tuple[Any, ...], bool]], drop_every: int
) -> None:
    counter = itertools.count()

    def losing(frame: bytes) -> list[bytes]:
        return [] if next(counter) % drop_every == 0 and dropping.is_set() else [frame]

    dropping = threading.Event()
    dropping.set()
    with (
        closing(Replica()) as replica,
        closing(PulseSubscriber(MESSAGES)) as subscriber,
        closing(PulseRelay(replica.endpoint.pulses, losing)) as relay,
    ):
        view = RecordingView()
        subscriber.follow("a", replace(replica.endpoint, pulses=relay.address), view)
        for action, lost in steps:
            perform(replica.cache, action)
            replica.step(lost)
        replica.compute(*range(500, 520))  # shows the publisher what it missed
        replica.engine.answer_replay(wait_ms=300)
        wait_for(lambda: in_step(view, replica))
        dropping.clear()
        replica.compute(*range(600, 620))
        wait_for(lambda: in_step(view, replica))


class _Telling(RecordingView):
    def __init__(self, told: threading.Event) -> None:
        super().__init__()
        self._told = told

    def replace(self, *arguments: Any) -> None:
        super().replace(*arguments)
        self._told.set()


def one_pulse(replica: Replica) -> bytes:
    context: zmq.Context[Any] = zmq.Context()
    reading = context.socket(zmq.SUB)
    reading.subscribe(b"")
    reading.connect(replica.endpoint.pulses)
    assert reading.poll(5000)
    frame: bytes = reading.recv()
    reading.close(linger=0)
    context.term()
    return frame


def take(queued: list[bytes]) -> list[bytes]:
    taken, queued[:] = list(queued), []
    return taken
