"""Requests that have ended."""

from __future__ import annotations

from typing import Any

from app.decisions.admission import Action, AdmissionDecision, Placement
from app.decisions.routing import RoutingDecision, RoutingReason
from app.requests import Outcome, RequestPath
from app.state.watermarks import Level
from deployments.request_record import RequestRecord
from tests.gates import HOT, triaged

STARTED = AdmissionDecision(Action.START, HOT, Placement.HOME, Level.NORMAL)
ROUTED = RoutingDecision("r0", RoutingReason.PREFIX_HIT, 64, 1.0)


def record(path: RequestPath = HOT, outcome: str = Outcome.ANSWERED, **fields: Any) -> RequestRecord:
    """One that started at once and hit a cached prefix."""
    given = {"routing": ROUTED, "replica": "r0", "duration_s": 3.0, "ttft_s": 0.5, "waited_s": 0.25, **fields}
    return RequestRecord(triaged(path, prompt=100), outcome, path.engines, STARTED, **given)
