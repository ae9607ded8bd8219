"""What one measured request is. Every generator (asyncio, Locust) and every report shares these types."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class TrafficClass(StrEnum):
    """The four kinds of traffic, and requests that come from a recorded trace."""

    IDE = "ide"
    CHAT = "chat"
    REVIEW = "review"
    SUMMARY = "summary"
    TRACE = "trace"


class Outcome(StrEnum):
    """How a request ended. Everything but OK counts against goodput."""

    OK = "ok"
    REFUSED = "refused"  # 429 or 503: the server declined the work
    FAILED = "failed"  # any other status, a broken stream, a broken connection, a timeout
    UNFINISHED = "unfinished"  # still running when the run ended


@dataclass(frozen=True, slots=True)
class Objective:
    """What a user of a class accepts. None does not bind.

    Args:
        ttft_s: time to the first token.
        itl_s: mean gap between the chunks of one answer.
        e2e_s: time to the end of the answer.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send: who asks, where to, and the whole body. Nothing in it depends on an answer.

    Args:
        at_s: offset from the start of the run; 0 in a closed loop.
        key: identity within a schedule; two runs of one schedule pair their records by it.
        first_touch: no earlier request of this schedule had this session's prefix.
        cut_tokens: tokens left out because the model's context is too short.
    """

    key: str
    traffic_class: TrafficClass
    endpoint: str
    body: bytes
    at_s: float = 0.0
    first_touch: bool = False
    cut_tokens: int = 0


@dataclass(slots=True)
class RequestRecord:
    """One request as the client saw it. Offsets are seconds since the start of the run.

    `ttft_s`, `e2e_s` and `lag_s` count from `at_s` in an open loop, so a late generator makes latency worse, never
    better. `itl_s` holds the gaps between chunks that carry tokens; chunks that arrive in one read have a gap of 0.
    """

    key: str
    traffic_class: TrafficClass
    at_s: float
    first_touch: bool = False
    cut_tokens: int = 0
    lag_s: float = 0.0
    outcome: Outcome = Outcome.UNFINISHED
    reason: str = ""
    status: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    path: str | None = None

    @property
    def mean_itl_s(self) -> float | None:
        return sum(self.itl_s) / len(self.itl_s) if self.itl_s else None

    def meets(self, objective: Objective) -> bool:
        """Whether the user got what the objective promises; a request without an answer never does."""
        if self.outcome is not Outcome.OK:
            return False
        measured = ((objective.ttft_s, self.ttft_s), (objective.itl_s, self.mean_itl_s), (objective.e2e_s, self.e2e_s))
        return all(limit is None or value is None or value <= limit for limit, value in measured)
