"""Every step of the engine arrives once and in order, or its loss is told."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from app.state.block_ledger import EventBatch
from deployments.engine_events import REPLAY_TIMEOUT_S, EngineEventStream, EventEndpoints
from tests.fake_event_publisher import FakeEventPublisher, event_endpoints, patient
from tests.fakes import FakeClock


class Rig:
    """An engine, the stream from it, and all that the stream yielded: the `ts` of each batch, None for a loss."""

    def __init__(self, endpoints: EventEndpoints, kept_steps: int = 1000) -> None:
        self.context = zmq.Context()
        self.endpoints = endpoints
        self.clock = FakeClock()
        self.engine = FakeEventPublisher(endpoints, kept_steps)
        self.stream = EngineEventStream(self.context, endpoints, self.clock)
        self.seen: list[float | None] = []
        self.await_stream()

    def await_stream(self) -> None:
        for _ in patient():
            self.read()
            if self.engine.has_new_subscriber():
                return

    def read(self) -> None:
        self.seen += [batch and batch.ts for batch in self.stream.read()]

    def publish(self, *steps: int, lost: bool = False) -> None:
        for step in steps:
            self.engine.publish(EventBatch(float(step), []), lost)

    def read_until(self, *expected: float | None) -> None:
        for _ in patient():
            self.read()
            if len(self.seen) >= len(expected):
                break
        assert self.seen == list(expected)

    def read_until_it_asks_for_a_replay(self) -> None:
        for _ in patient():
            self.read()
            if len(self.stream.sockets) == 2:
                return

    def read_until_it_fails(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            for _ in patient():
                self.read()

    def close(self) -> None:
        self.engine.close()
        self.stream.close()
        self.context.term()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with event_endpoints() as endpoints:
        rig = Rig(endpoints)
        yield rig
        rig.close()


def test_steps_arrive_in_order(rig: Rig) -> None:
    rig.publish(1, 2, 3)
    rig.read_until(1, 2, 3)


def test_a_lost_step_is_replayed(rig: Rig) -> None:
    rig.publish(1)
    rig.publish(2, 3, lost=True)
    rig.publish(4, 5)
    rig.read_until_it_asks_for_a_replay()
    assert rig.engine.answer_replay()
    rig.publish(6)
    rig.read_until(1, 2, 3, 4, 5, 6)


def test_joining_late_everything_from_the_start_is_replayed(rig: Rig) -> None:
    rig.publish(1, 2, lost=True)
    rig.publish(3)
    rig.read_until_it_asks_for_a_replay()
    assert rig.engine.answer_replay()
    rig.read_until(1, 2, 3)


def test_steps_that_come_by_both_ways_count_once(rig: Rig) -> None:
    rig.publish(1, lost=True)
    rig.publish(2)
    rig.read_until_it_asks_for_a_replay()
    rig.publish(3)  # queued on the live socket, and replayed
    assert rig.engine.answer_replay()
    rig.publish(4)
    rig.read_until(1, 2, 3, 4)


def test_a_loss_that_a_replay_cannot_fill_is_told() -> None:
    with event_endpoints() as endpoints:
        rig = Rig(endpoints, kept_steps=2)
        rig.publish(1)
        rig.publish(2, 3, 4, lost=True)
        rig.publish(5)
        rig.read_until_it_asks_for_a_replay()
        assert rig.engine.answer_replay()
        rig.read_until(1, None, 4, 5)
        rig.publish(6)
        rig.read_until(1, None, 4, 5, 6)
        rig.close()


def test_a_replay_that_does_not_come_is_given_up(rig: Rig) -> None:
    rig.publish(1, lost=True)
    rig.publish(2)
    rig.read_until_it_asks_for_a_replay()
    rig.publish(3)
    rig.clock.advance(REPLAY_TIMEOUT_S)
    rig.read_until(None, 2, 3)


def test_another_engine_process_is_a_loss(rig: Rig) -> None:
    rig.publish(1, 2)
    rig.read_until(1, 2)
    rig.engine.close()
    rig.engine = FakeEventPublisher(rig.endpoints)
    rig.await_stream()
    rig.publish(3, 4)
    rig.read_until(1, 2, None, 3, 4)


def test_a_step_that_cannot_be_read_fails_and_is_a_loss(rig: Rig) -> None:
    rig.engine.publish("no batch")  # type: ignore[arg-type]  # what no engine sends
    rig.read_until_it_fails()
    rig.publish(2)
    rig.read_until_it_asks_for_a_replay()
    assert rig.engine.answer_replay()
    rig.read_until_it_fails()
    rig.read_until(None, 2)


def test_prompts_cross_a_folder_that_others_cannot_enter() -> None:
    with event_endpoints() as endpoints:
        folder = Path(endpoints.events.removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert Path(endpoints.replay.removeprefix("ipc://")).parent == folder
    assert not folder.exists()


def test_the_engine_is_told_to_publish_there() -> None:
    with event_endpoints() as endpoints:
        argument = endpoints.config_fields()
        assert (argument["endpoint"], argument["replay_endpoint"]) == (endpoints.events, endpoints.replay)
        assert argument["enable_kv_cache_events"] is True
