"""The publisher tells the truth about its engine, and nobody who listens can slow it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import zmq

from deployments.pulse_messages import PulseMessages
from deployments.pulse_publisher import MAX_WAITING_REQUESTS
from deployments.pulse_subscriber import PulseSubscriber
from tests.fake_engine_cache import HASHER
from tests.fakes import RecordingView
from tests.feed_rig import MESSAGES, Replica, followed, in_step, replayed, wait_for


def test_a_reset_is_told_before_the_engine_tells_it(replica: Replica, subscriber: PulseSubscriber) -> None:
    replica.compute(*range(40))
    view = followed(subscriber, replica)
    replica.cache.clear()
    replica.feed.forget_all()
    wait_for(lambda: in_step(view, replica))


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


def test_lost_engine_events_are_replayed(replica: Replica, subscriber: PulseSubscriber) -> None:
    view = followed(subscriber, replica)
    replica.cache.compute(range(40))
    replica.step(lost=True)
    replica.cache.compute(range(80))
    replica.step()
    replayed(replica)
    wait_for(lambda: in_step(view, replica))
    assert replica.feed.counts.lost_streams == 0


def test_engine_events_that_are_lost_for_good_make_everything_unknown(subscriber: PulseSubscriber) -> None:
    with closing(Replica(kept_steps=1)) as replica:
        replica.compute(*range(40))
        view = followed(subscriber, replica)
        replica.cache.evict(0)
        replica.step(lost=True)
        replica.cache.compute(range(100, 120))
        only_this = set(HASHER.prompt(range(100, 120)))
        replica.step()
        replayed(replica)
        wait_for(lambda: view.held["a"] == only_this)
        assert replica.feed.counts.lost_streams == 1
