"""What the autoscaling policy is told at one moment: who runs, what each said last and how long ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.requests import RequestPath
from app.state.scaling_inputs import EngineStats, IngressStats

Stats = TypeVar("Stats", EngineStats, IngressStats)


@dataclass(frozen=True, slots=True)
class Report(Generic[Stats]):
    """The last thing that a running replica said of itself."""

    stats: Stats
    age_s: float


@dataclass(frozen=True, slots=True)
class PathFleet:
    """The engines of one path.

    Args:
        running: replicas that Serve runs. Those without a report have just started.
        target: replicas that Serve has been asked for.
        least, most: bounds of the configuration.
    """

    running: int
    target: int
    least: int
    most: int
    reports: Sequence[Report[EngineStats]] = ()

    @property
    def coming(self) -> int:
        """Replicas that have been asked for and do not take part yet."""
        return max(0, self.target - len(self.reports))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The whole application. `paths` has HOT and COLD, or one of them; `ingresses` is how many ingress replicas run."""

    paths: Mapping[RequestPath, PathFleet]
    ingresses: int
    ingress_reports: Sequence[Report[IngressStats]] = ()
