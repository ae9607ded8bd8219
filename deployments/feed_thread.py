"""A thread of the pulse feed: repeats a step, survives its faults, is woken and ended from outside."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger("ray.serve")

FAULT_PAUSE_S = 0.1
# Of a fault that returns with every step, one line in so many.
LOGGED_FAULT = 100


class FeedThread:
    """Runs `step` until `close`, then `finish`, all in one thread.

    Args:
        step: waits until there is work, or `wakeup` is readable, and does the work.
        recover: brings what a fault in `step` left half done into a state that is known.
        finish: releases what the thread used.
    """

    def __init__(
        self, name: str, step: Callable[[], None], recover: Callable[[], None], finish: Callable[[], None]
    ) -> None:
        self.faults = 0
        self._step = step
        self._recover = recover
        self._finish = finish
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self.wakeup = socket.socketpair()
        self._wake.setblocking(False)
        self.wakeup.setblocking(False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, command: Callable[[], None]) -> None:
        """Have the thread run `command` at once. From any thread; does not wait."""
        self._commands.put(command)
        self._interrupt()

    def close(self) -> None:
        """End the thread and wait for it. Idempotent."""
        self._closing.set()
        self._interrupt()
        if self._thread.ident is not None:
            self._thread.join()
        self._wake.close()
        self.wakeup.close()

    def note_fault(self, what: str) -> None:
        """Count the exception being handled, and log it now and then."""
        if self.faults % LOGGED_FAULT == 0:
            logger.exception("%s: %s (fault %d)", self._thread.name, what, self.faults + 1)
        self.faults += 1

    def _interrupt(self) -> None:
        with suppress(OSError):  # full, so awake already; or closed
            self._wake.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._guarded(self._once)
        finally:
            self._finish()

    def _once(self) -> None:
        self._step()
        with suppress(BlockingIOError):
            self.wakeup.recv(4096)
        while not self._commands.empty():
            self._commands.get()()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            self.note_fault("a step failed")
            self._closing.wait(FAULT_PAUSE_S)
            try:
                self._recover()
            except Exception:
                self.note_fault("recovering from a fault failed")
