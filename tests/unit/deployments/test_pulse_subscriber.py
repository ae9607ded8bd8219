"""What the router sees becomes what the engine holds, whatever happens between them."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from app.state.pulse import ReplicaLoad
from deployments.pulse_messages import FeedEndpoint
from deployments.pulse_subscriber import PulseSubscriber
from tests.fake_engine_cache import cache_actions, perform
from tests.fake_network import PulseRelay, TcpRelay
from tests.fakes import RecordingView
from tests.feed_rig import MESSAGES, Replica, followed, in_step, wait_for


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


def test_a_replica_that_goes_predicts_no_hit_and_its_neighbour_stays(subscriber: PulseSubscriber) -> None:
    with closing(Replica()) as going, closing(Replica()) as staying:
        view = RecordingView()
        for replica_id, replica in (("going", going), ("staying", staying)):
            replica.compute(*range(40))
            subscriber.follow(replica_id, replica.endpoint, view)
            wait_for(lambda replica_id=replica_id, replica=replica: in_step(view, replica, replica_id))  # type: ignore[misc]  # likewise: a lambda with defaults
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
        wait_for(lambda: subscriber.counts.disconnects >= 1)
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
@given(st.lists(cache_actions, min_size=5, max_size=40), st.integers(2, 5))
def test_over_a_lossy_network_the_view_converges_to_the_truth(steps: list[tuple[Any, ...]], drop_every: int) -> None:
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
        for action in steps:
            perform(replica.cache, action)
            replica.step()
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
