"""A fault costs a feed's thread one step, never its life."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from deployments.feed_thread import FeedThread


class Work:
    """A step that waits to be woken, and can be told to fail."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.log: list[str] = []
        self.failing: Callable[[], None] | None = None
        self.thread = FeedThread("work", self.step, lambda: self.log.append("recovered"), self.finish)

    def step(self) -> None:
        if self.failing is not None:
            failing, self.failing = self.failing, None
            failing()

    def finish(self) -> None:
        self.log.append("finished")

    def wait(self) -> None:
        """Until the thread has taken another command."""
        done = threading.Event()
        self.thread.call(done.set)
        assert done.wait(10)


def fail() -> None:
    raise KeyError("broken")


def test_commands_run_in_the_thread_and_closing_finishes() -> None:
    work = Work()
    work.thread.start()
    where: list[str] = []
    work.thread.call(lambda: where.append(threading.current_thread().name))
    work.wait()
    work.thread.close()
    assert where == ["work"] and work.log == ["finished"]
    assert not work.thread.alive


def test_a_step_that_fails_is_counted_and_recovered_from() -> None:
    work = Work()
    work.failing = fail
    work.thread.start()
    work.wait()
    assert (work.thread.faults, work.thread.alive) == (1, True)
    work.thread.close()
    assert work.log == ["recovered", "finished"]


def test_a_command_that_fails_is_counted_and_recovered_from() -> None:
    work = Work()
    work.thread.start()
    work.thread.call(fail)
    work.wait()
    work.wait()
    work.thread.close()
    assert work.thread.faults == 1
    assert work.log == ["recovered", "finished"]


def test_the_first_fault_is_logged_and_a_flood_is_not(caplog: pytest.LogCaptureFixture) -> None:
    thread = Work().thread
    for _ in range(50):
        try:
            fail()
        except KeyError:
            thread.note_fault("it broke")
    assert thread.faults == 50
    assert [record.message for record in caplog.records] == ["work: it broke (fault 1)"]
    thread.close()


def test_closing_twice_or_unstarted_is_harmless() -> None:
    work = Work()
    work.thread.close()
    work.thread.close()
    work.thread.call(fail)
    assert work.thread.faults == 0
