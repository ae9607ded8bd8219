"""Lets requests in: quotas, then the guard; wakes those who wait, and ends those who must give way."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.config.keys import Client
from app.decisions.admission import Action, AdmissionDecision, Ask, Guard
from app.errors import ApiError
from app.requests import Refusal, RequestPath
from app.state.engines import EnginesState, Reservation
from app.state.pressure import ReplicaReading
from app.state.quotas import Charge, QuotaDecision, Quotas
from deployments.admitted import Admitted
from deployments.refusals import no_room_in_time, refusal_error
from deployments.request_record import Observer, RequestRecord, log_request
from deployments.triage import Triaged

logger = logging.getLogger("ray.serve")

TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would become of a request, and what stands behind that.

    Args:
        refusals: how many there have been, by path and reason.
    """

    quota: QuotaDecision
    decision: AdmissionDecision
    states: Mapping[RequestPath, EnginesState]
    refusals: Mapping[tuple[RequestPath, Refusal], int]


class Gate:
    """The door of one ingress replica. For one event loop: there is no lock.

    A request that finds room passes without waiting for anything. What takes time is done in ticks: taking in what the
    replicas report, ending waits that are over their deadline, aborting whom the guard names.

    Args:
        guard: decides.
        quotas: of the keys.
        readings: by HOT and COLD engines, what is known of each replica; None while Serve has not told which there are.
        slots_per_replica: requests that fit on one replica of those engines.
        assumed_output_tokens: stands for a missing `max_tokens` when a key is charged.
        clock: monotonic seconds, the guard's.
        observe: is told of every request that is refused here.
    """

    def __init__(
        self,
        guard: Guard,
        quotas: Quotas,
        readings: Mapping[RequestPath, Callable[[], list[ReplicaReading] | None]],
        slots_per_replica: Mapping[RequestPath, int],
        assumed_output_tokens: int,
        clock: Callable[[], float],
        observe: Observer = log_request,
    ) -> None:
        self.refusals: Counter[tuple[RequestPath, Refusal]] = Counter()
        self._guard = guard
        self._quotas = quotas
        self._readings = readings
        self._slots_per_replica = slots_per_replica
        self._assumed_output_tokens = assumed_output_tokens
        self._clock = clock
        self._observe = observe
        self.states = guard.states()  # as of the last tick, for other threads
        self._open: dict[Reservation, Admitted] = {}
        self._waiting: set[Reservation] = set()

    def admit(self, triaged: Triaged, client: Client, timeout_s: float | None, told: Mapping[str, str]) -> Admitted:
        """Let a request in, to run or to wait. The caller closes what is returned, whatever happens.

        Args:
            timeout_s: the client's own deadline.
            told: response headers that answer and refusal carry beside those of the decisions.

        Raises:
            ApiError: refused; nothing is held.
        """
        charge = self._charge(triaged, client)
        if charge.decision.reason is not None:
            raise self._refused(triaged, charge, told, charge.decision.reason, charge.decision.retry_after_s)
        admission = self._guard.admit(_ask(triaged, timeout_s))
        decision, reservation = admission.decision, admission.reservation
        if reservation is None:
            charge.refund()
            assert isinstance(decision.reason, Refusal)  # noqa: S101 - what holds nothing has been refused
            raise self._refused(triaged, charge, told, decision.reason, decision.retry_after_s, decision)
        admitted = Admitted(triaged, decision, reservation, charge, told, self._closed)
        self._open[reservation] = admitted
        if decision.action is Action.WAIT:
            admitted.wait_from(self._clock(), own_deadline=timeout_s is not None)
            self._waiting.add(reservation)
        return admitted

    def explain(self, triaged: Triaged, client: Client, timeout_s: float | None) -> Verdict:
        """What `admit` would decide. Nothing stays booked."""
        charge = self._charge(triaged, client)
        charge.refund()
        decision = self._guard.explain(_ask(triaged, timeout_s))
        return Verdict(charge.decision, decision, self._guard.states(), dict(self.refusals))

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            try:
                self.tick()
            except Exception:  # whatever it is, requests must go on being woken and ended
                logger.exception("a tick of the admission gate failed")
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Take in what the replicas report, and act on it."""
        for engines, readings_of in self._readings.items():
            readings = readings_of()
            if readings is not None:
                self._guard.observe(engines, readings, slots=len(readings) * self._slots_per_replica[engines])
        self._start_ready()
        for reservation in self._guard.expire():
            self._end_wait(reservation)
        for reservation in self._guard.victims():
            retry_s = self._guard.states()[reservation.engines.name].retry_after_s
            error = refusal_error(Refusal.ABORTED_FOR_CAPACITY, reservation.engines.name, retry_s)
            self._open[reservation].abort(error)
        self.states = self._guard.states()

    def _start_ready(self) -> None:
        if self._waiting:
            for reservation in self._guard.ready():
                self._waiting.discard(reservation)
                self._open[reservation].start()

    def _end_wait(self, reservation: Reservation) -> None:
        self._waiting.discard(reservation)
        admitted = self._open[reservation]
        if admitted.own_deadline:
            admitted.refuse(no_room_in_time())
        else:
            retry_s = self._guard.states()[admitted.engines].retry_after_s
            admitted.refuse(refusal_error(Refusal.DEADLINE_PASSED, admitted.engines, retry_s))

    def _closed(self, reservation: Reservation, error: ApiError | None) -> None:
        """What it held is free: it may be somebody's turn."""
        self._waiting.discard(reservation)
        del self._open[reservation]
        if error is not None and isinstance(error.code, Refusal):
            self._count(reservation.path, error.code)
        self._start_ready()

    def _charge(self, triaged: Triaged, client: Client) -> Charge:
        features = triaged.features
        answers = features.sequences * features.expected_output_tokens(self._assumed_output_tokens)
        return self._quotas.charge(client.name, client.quota, features.prompt_tokens + answers)

    def _refused(
        self,
        triaged: Triaged,
        charge: Charge,
        told: Mapping[str, str],
        reason: Refusal,
        retry_after_s: float | None,
        decision: AdmissionDecision | None = None,
    ) -> ApiError:
        found = triaged.found
        self._count(found.path, reason)
        engines = found.path.engines if decision is None else decision.engines
        self._observe(RequestRecord(triaged, reason, engines, decision))
        headers = {
            "x-kvpulse-path": found.path,
            "x-kvpulse-reason": found.reason,
            "x-kvpulse-admission": reason,
            **charge.decision.headers(),
            **told,
        }
        return refusal_error(reason, engines, retry_after_s).tell(headers)

    def _count(self, path: RequestPath, reason: Refusal) -> None:
        self.refusals[path, reason] += 1


def _ask(triaged: Triaged, timeout_s: float | None) -> Ask:
    found = triaged.found
    return Ask(triaged.features, found.path, found.priority, triaged.may_move, timeout_s)
