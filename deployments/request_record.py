"""What became of one request, in one value: for the log, metrics, traces and the live page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from app.decisions.admission import AdmissionDecision
from app.decisions.routing import RoutingDecision
from app.requests import RequestPath
from deployments.triage import Triaged

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that was classified, at its end. No text of it, no key.

    Args:
        outcome: an `Outcome`, or the code of the error that the client got (a `Refusal`, for one).
        engines: where it ran, or would have.
        admission: None when a quota refused it before.
        routing: of its last lease; None when it had none.
        replica: of the same; empty without.
        duration_s: from its arrival at the ingress to its end; None when it was refused at once.
        ttft_s: from its arrival to the first byte of a streamed answer; None without.
        waited_s: for a slot.
        used_tokens: prompt and answer, as the engine counted them; None when it did not tell.
    """

    triaged: Triaged
    outcome: str
    engines: RequestPath
    admission: AdmissionDecision | None
    routing: RoutingDecision | None = None
    replica: str = ""
    duration_s: float | None = None
    ttft_s: float | None = None
    waited_s: float = 0.0
    used_tokens: int | None = None

    @property
    def path(self) -> RequestPath:
        return self.triaged.found.path


Observer = Callable[[RequestRecord], None]


def log_request(record: RequestRecord) -> None:
    """The one line that the log has for each request."""
    found, admission, routing = record.triaged.found, record.admission, record.routing
    logger.info(
        "request path=%s reason=%s priority=%d admission=%s level=%s engines=%s replica=%s routing=%s "
        "matched_tokens=%d waited_ms=%d prefill_ms=%s ttft_ms=%s output_cap_tokens=%s used_tokens=%s outcome=%s",
        found.path,
        found.reason,
        record.triaged.priority,
        "-" if admission is None else admission.reason,
        "-" if admission is None else admission.level.name.lower(),
        record.engines,
        record.replica or "-",
        "-" if routing is None else routing.reason,
        0 if routing is None else routing.matched_tokens,
        round(1000 * record.waited_s),
        "-" if admission is None else round(1000 * admission.prefill_s),
        "-" if record.ttft_s is None else round(1000 * record.ttft_s),
        "-" if admission is None or admission.output_cap_tokens is None else admission.output_cap_tokens,
        "-" if record.used_tokens is None else record.used_tokens,
        record.outcome,
    )


def observed_by(*observers: Observer) -> Observer:
    """Tells each of them; one that fails keeps nothing from the others, nor from the client."""

    def tell(record: RequestRecord) -> None:
        for observer in observers:
            try:
                observer(record)
            except Exception:
                logger.exception("an observer of requests failed")

    return tell
