"""Which engines of this machine compute now: a few numbers in a file that all of their processes map.

Each engine has one number, the moment until which it counts as busy, on the machine's monotonic clock. It alone writes
it, everyone reads it, nobody waits. Nothing is to be cleaned up after an engine that dies: its moment passes, and the
kernel gives its place back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ENGINES = 64
# A step that takes longer than this ends its engine's claim; only a dead or stopped engine is meant.
LONGEST_STEP_NS = 5_000_000_000
# Steps of a busy engine follow each other sooner than this.
BETWEEN_STEPS_NS = 50_000_000
_BYTES = 8


class EngineActivity:
    """One engine's view of the others. A step costs a few microseconds.

    Args:
        path: the file, made if it is not there.
        clock_ns: monotonic, the same in all processes of the machine.

    Raises:
        OSError: the file cannot be opened, or `ENGINES` engines run already.
    """

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, ENGINES * _BYTES)
        self._own = self._free_place()
        self._busy_until_ns = memoryview(mmap.mmap(self._file, ENGINES * _BYTES)).cast("q")

    def begin_step(self) -> bool:
        """This engine computes from now on. Returns whether another one does."""
        now_ns = self._clock_ns()
        self._busy_until_ns[self._own] = now_ns + LONGEST_STEP_NS
        # A moment further away than any step lasts was written before the machine was started anew.
        return any(
            now_ns < until_ns <= now_ns + LONGEST_STEP_NS
            for place, until_ns in enumerate(self._busy_until_ns.tolist())
            if place != self._own
        )

    def end_step(self) -> None:
        """The step is over; the next one, if there is one, follows at once."""
        self._busy_until_ns[self._own] = self._clock_ns() + BETWEEN_STEPS_NS

    def _free_place(self) -> int:
        """Lock a place for as long as this process lives."""
        for place in range(ENGINES):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _BYTES, place * _BYTES)
            except BlockingIOError:
                continue
            return place
        raise OSError(f"{ENGINES} engines run on this machine already")


def activity_path() -> Path:
    """In memory where the system has such a folder; one file per user."""
    folder = Path("/dev/shm")  # noqa: S108 - made for this, and the file is opened without following links
    return (folder if folder.is_dir() else Path(tempfile.gettempdir())) / f"kvpulse-engines-{os.getuid()}"
