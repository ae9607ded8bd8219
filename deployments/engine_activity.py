"""Which engines of this machine compute now: a few numbers in a file that all of their processes map.

Each engine has one number: the moment until which it counts as busy, on the machine's monotonic clock, and in its last
two bits what it claims meanwhile. It alone writes it, everyone reads it, nobody waits. Nothing is to be cleaned up
after an engine that dies: its moment passes, and the kernel gives its place back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

ENGINES = 64
# A step that takes longer than this ends its engine's claim; only a dead or stopped engine is meant.
LONGEST_STEP_NS = 5_000_000_000
# Steps of a busy engine follow each other sooner than this.
BETWEEN_STEPS_NS = 50_000_000
_BYTES = 8
_CLAIM_BITS = 2
_CLAIM_MASK = (1 << _CLAIM_BITS) - 1


class Claim(IntEnum):
    """What an engine asks of the others while it computes a step."""

    URGENT = 0  # that those who yield wait for their turn
    NONE = 1
    TURN = 2  # it yields otherwise, but now it is its turn: that they leave it its share of the cores


@dataclass(frozen=True, slots=True)
class Others:
    """The other engines of the machine at one moment.

    Args:
        compute: at least one does.
        urgent: one asks those who yield to wait.
        turn: one has its turn.
    """

    compute: bool = False
    urgent: bool = False
    turn: bool = False


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
        self._numbers = memoryview(mmap.mmap(self._file, ENGINES * _BYTES)).cast("q")

    def begin_step(self, claim: Claim = Claim.URGENT) -> Others:
        """This engine computes from now on. Returns what the others do."""
        self._write(self._clock_ns() + LONGEST_STEP_NS, claim)
        return self.others()

    def others(self) -> Others:
        now_ns = self._clock_ns()
        claims = {
            number & _CLAIM_MASK
            for place, number in enumerate(self._numbers.tolist())
            # A moment further away than any step lasts was written before the machine was started anew.
            if place != self._own and now_ns < number >> _CLAIM_BITS <= now_ns + LONGEST_STEP_NS
        }
        return Others(bool(claims), Claim.URGENT in claims, Claim.TURN in claims)

    def end_step(self) -> None:
        """The step is over; the next one, if there is one, follows at once. A turn is over with its step."""
        claim = Claim(self._numbers[self._own] & _CLAIM_MASK)
        self._write(self._clock_ns() + BETWEEN_STEPS_NS, Claim.NONE if claim is Claim.TURN else claim)

    def _write(self, until_ns: int, claim: Claim) -> None:
        self._numbers[self._own] = until_ns << _CLAIM_BITS | claim

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
