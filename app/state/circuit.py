"""Whether a path's engines can be trusted with a request: a circuit that opens on failures and probes its way back."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from app.config.admission import BreakerConfig
from app.requests import Outcome


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Circuit:
    """Opens after `failures` engine failures in a row. After `open_s` one request at a time may probe: its answer
    closes the circuit (its first token, where one is seen), its failure opens it anew. What a client did wrong, or
    called off, is no evidence either way.

    Args:
        rules: thresholds.
        clock: monotonic seconds.
    """

    def __init__(self, rules: BreakerConfig, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._failures = 0
        self._opened_s: float | None = None
        self._probing = False

    @property
    def state(self) -> CircuitState:
        if self._opened_s is None:
            return CircuitState.CLOSED
        return CircuitState.HALF_OPEN if self.retry_after_s <= 0 else CircuitState.OPEN

    @property
    def takes_requests(self) -> bool:
        return self._opened_s is None or (self.state is CircuitState.HALF_OPEN and not self._probing)

    @property
    def retry_after_s(self) -> float:
        """Until a probe may go, 0 when it may already or none is needed."""
        if self._opened_s is None:
            return 0.0
        return max(0.0, self._opened_s + self._rules.open_s - self._clock())

    def begin(self) -> bool:
        """Note that a request starts; tells whether it is the probe. Call only while `takes_requests`."""
        if self._opened_s is None:
            return False
        self._probing = True
        return True

    def end(self, outcome: Outcome, probe: bool) -> None:
        """Note how a started request ended, with what `begin` said of it, or that a probe succeeded before its end."""
        if probe:
            self._probing = False
        if outcome is Outcome.ENGINE_FAILED:
            self._failures += 1
            if probe or (self._opened_s is None and self._failures >= self._rules.failures):
                self._opened_s = self._clock()
        elif outcome is Outcome.ANSWERED and (probe or self._opened_s is None):
            self._failures = 0
            self._opened_s = None
