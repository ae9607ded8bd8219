"""When an engine replica speaks, and what it says: the pure half of the feed's publisher."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from app.state.block_ledger import BlockLedger
from app.state.pulse import Pulse, ReplicaLoad, Snapshot

# At most ten pulses per second while things change, the first after a quiet time at once.
MIN_INTERVAL_S = 0.1
HEARTBEAT_S = 0.5


class PulseSource:
    """Numbers the pulses of one incarnation.

    Args:
        read_load: the engine's load now; called for every pulse and, to see it change, once per `MIN_INTERVAL_S`.
    """

    def __init__(self, ledger: BlockLedger, incarnation: str, read_load: Callable[[], ReplicaLoad]) -> None:
        self.ledger = ledger
        self._incarnation = incarnation
        self._read_load = read_load
        self._load = ReplicaLoad()
        self._sequence = 0
        self._told_at_s = float("-inf")

    def wake_in_s(self, now_s: float) -> float:
        """Seconds until `pulse_if_due` should be asked again, if no event comes before."""
        return max(0.0, self._told_at_s + MIN_INTERVAL_S - now_s) or MIN_INTERVAL_S

    def pulse_if_due(self, now_s: float) -> Pulse | None:
        """The next pulse when something changed and the last was long enough ago, or as a heartbeat."""
        quiet_s = now_s - self._told_at_s
        if quiet_s < MIN_INTERVAL_S:
            return None
        load = self._read_load()
        if not self.ledger.changed and load == self._load and quiet_s < HEARTBEAT_S:
            return None
        return self._pulse(now_s, load)

    def pulse_now(self, now_s: float) -> Pulse:
        return self._pulse(now_s, self._read_load())

    def snapshot(self) -> Snapshot:
        """Everything held after the last pulse. There must be no change pending: speak first."""
        assert not self.ledger.changed, "a snapshot must not run ahead of the pulses"  # noqa: S101 - an invariant
        return Snapshot(self._incarnation, self._sequence, array("Q", self.ledger.held()).tobytes(), self._load)

    def _pulse(self, now_s: float, load: ReplicaLoad) -> Pulse:
        self._sequence += 1
        self._told_at_s = now_s
        self._load = load
        return Pulse(self._incarnation, self._sequence, self.ledger.take_change(), load)
