"""A request that was let in, from its admission to its end: its slot, its charge, what its client is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from app.decisions.admission import AdmissionDecision
from app.errors import ApiError
from app.requests import Outcome, RequestPath
from app.state.engines import Reservation
from app.state.quotas import Charge
from deployments.triage import Triaged


class Admitted:
    """Holds a slot or a place in the line, and a debit of its key's quota, until `close`.

    Args:
        told: response headers beside those of the decisions.
        closed: called once at the end, with the error that the client got.
    """

    def __init__(
        self,
        triaged: Triaged,
        decision: AdmissionDecision,
        reservation: Reservation,
        charge: Charge,
        told: Mapping[str, str],
        closed: Callable[[Reservation, ApiError | None], None],
    ) -> None:
        self.triaged = triaged
        self.decision = decision
        self.own_deadline = False
        self.on_abort: Callable[[ApiError], None] | None = None
        self._reservation = reservation
        self._charge = charge
        self._told = told
        self._closed = closed
        self._asked_s: float | None = None
        self._slot: asyncio.Future[None] | None = None

    @property
    def engines(self) -> RequestPath:
        """Where it runs or waits, HOT or COLD. Failover may move it while it waits."""
        return self._reservation.engines.name

    def wait_from(self, now_s: float, own_deadline: bool) -> None:
        """There is no slot yet. `own_deadline`: the client itself has said how long it may take."""
        self.own_deadline = own_deadline
        self._asked_s = now_s
        self._slot = asyncio.get_running_loop().create_future()

    async def slot(self) -> RequestPath:
        """Wait for the slot, where there was none at once, and learn on which engines it is.

        Raises:
            ApiError: none came in time.
        """
        if self._slot is not None:
            await self._slot
        return self.engines

    def start(self) -> None:
        """The wait is over."""
        if self._slot is not None and not self._slot.done():
            self._slot.set_result(None)

    def refuse(self, error: ApiError) -> None:
        """The wait is over, in vain."""
        if self._slot is not None and not self._slot.done():
            self._slot.set_exception(error)

    def abort(self, error: ApiError) -> None:
        """It runs and must end now, so that others can go on."""
        if self.on_abort is not None:
            self.on_abort(error)

    def first_token(self) -> None:
        """Its prompt has been computed."""
        self._reservation.first_token()

    def close(self, outcome: Outcome, used_tokens: int | None, served: bool, error: ApiError | None) -> None:
        """The request is over, however it ended. Called once.

        Args:
            used_tokens: prompt and answer as the engine counted them; None when it did not tell.
            served: whether the key pays for it.
            error: what the client got instead of a complete answer.
        """
        self._reservation.release(outcome)
        if served:
            self._charge.settle(used_tokens)
        else:
            self._charge.refund()
        if self._slot is not None and self._slot.done() and not self._slot.cancelled():
            self._slot.exception()  # whoever would have awaited it has left
        self._closed(self._reservation, error)

    @property
    def started(self) -> bool:
        """It has, or had, a slot."""
        return self._reservation.started_s is not None

    @property
    def waited_s(self) -> float:
        """For its slot; 0 while it has none."""
        started_s = self._reservation.started_s
        return 0.0 if self._asked_s is None or started_s is None else started_s - self._asked_s

    def headers(self) -> dict[str, str]:
        """All that has been decided so far."""
        headers = {
            "x-kvpulse-path": self.triaged.found.path.value,
            "x-kvpulse-reason": self.triaged.found.reason,
            "x-kvpulse-priority": str(self.triaged.priority),
            "x-kvpulse-admission": self.decision.reason.value,
            "x-kvpulse-engines": self.engines.value,
            "x-kvpulse-level": self.decision.level.name.lower(),
            "x-kvpulse-waited-ms": str(round(1000 * self.waited_s)),
            **self._charge.decision.headers(),
            **self._told,
        }
        if self.decision.output_cap_tokens is not None:
            headers["x-kvpulse-output-cap-tokens"] = str(self.decision.output_cap_tokens)
        return headers
