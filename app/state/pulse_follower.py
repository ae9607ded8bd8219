"""Keeps a view of one replica in step with its pulses: the pure half of the feed's subscriber."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from app.state.pulse import CacheChange, Pulse, ReplicaLoad, Snapshot

# Pulses kept while a snapshot is under way: six seconds of a busy engine. With more the snapshot is asked for again.
MAX_WAITING_PULSES = 64


class ReplicaView(Protocol):
    """Who is told. Its methods are called on the feed's thread."""

    def apply(self, replica_id: str, change: CacheChange, load: ReplicaLoad) -> object: ...

    def replace(self, replica_id: str, hashes: Iterable[int], load: ReplicaLoad) -> object: ...

    def disconnected(self, replica_id: str) -> None: ...


@dataclass(slots=True)
class FollowerCounts:
    """What went wrong, and how often it was mended.

    Args:
        gaps: times that pulses were missed.
        outdated: pulses older than what is known: repeated, or overtaken by a snapshot.
        restarts: times that the publisher came back as another incarnation.
        snapshots: snapshots applied.
    """

    gaps: int = 0
    outdated: int = 0
    restarts: int = 0
    snapshots: int = 0


class PulseFollower:
    """In step, every pulse goes to the view. Out of step, nothing does until a snapshot: what is missing is unknown."""

    def __init__(self, replica_id: str, view: ReplicaView, counts: FollowerCounts) -> None:
        self.replica_id = replica_id
        self.counts = counts
        self.in_step = False
        self._view = view
        self._incarnation = ""
        self._sequence = 0
        self._waiting: deque[Pulse] = deque(maxlen=MAX_WAITING_PULSES)

    def on_pulse(self, pulse: Pulse) -> None:
        if not self.in_step:
            self._waiting.append(pulse)
        elif pulse.incarnation != self._incarnation:
            self.counts.restarts += 1
            self._view.disconnected(self.replica_id)
            self._fall_out(pulse)
        elif pulse.sequence <= self._sequence:
            self.counts.outdated += 1
        elif pulse.sequence > self._sequence + 1:
            self.counts.gaps += 1
            self._view.apply(self.replica_id, CacheChange(cleared=True), pulse.load)
            self._fall_out(pulse)
        else:
            self._sequence = pulse.sequence
            self._view.apply(self.replica_id, pulse.change, pulse.load)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """In step again, unless the pulses that came meanwhile do not join on to the snapshot."""
        self.counts.snapshots += 1
        self._incarnation, self._sequence = snapshot.incarnation, snapshot.sequence
        self._view.replace(self.replica_id, memoryview(snapshot.hashes).cast("Q"), snapshot.load)
        self.in_step = True
        waiting = [pulse for pulse in self._waiting if pulse.incarnation == self._incarnation]
        self._waiting.clear()
        for pulse in waiting:
            self.on_pulse(pulse)

    def on_disconnected(self) -> None:
        """Its connection is gone, so perhaps the engine is. Predict no hit there until it has told what it holds."""
        self.in_step = False
        self._view.disconnected(self.replica_id)

    def _fall_out(self, pulse: Pulse) -> None:
        self.in_step = False
        self._waiting.append(pulse)
