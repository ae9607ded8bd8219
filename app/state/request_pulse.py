"""The requests of one path over the last seconds, from what the ingresses report."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from app.state.board_reports import PathReport

_WINDOW_S = 10.0
_MOST_TIMES = 4096


class PathSample(msgspec.Struct, frozen=True, array_like=True):
    """One second of one path.

    Args:
        requests_per_s: that ended, over the last ten seconds; likewise the times to first token, None without any.
        outcomes: of this second alone.
    """

    requests_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    outcomes: Mapping[str, int]


class RequestPulse:
    """Of one path. Bounded, however many requests there are."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._times: deque[tuple[float, float]] = deque(maxlen=_MOST_TIMES)
        self._outcomes: Counter[str] = Counter()

    def add(self, report: PathReport, now_s: float) -> None:
        self._outcomes.update(report.outcomes)
        self._counts.append((now_s, sum(report.outcomes.values())))
        self._times.extend((now_s, ttft_s) for ttft_s in report.ttft_s)

    def tick(self, now_s: float) -> PathSample:
        """Once per second."""
        for window in (self._counts, self._times):
            while window and window[0][0] < now_s - _WINDOW_S:
                window.popleft()
        times = sorted(ttft_s for _, ttft_s in self._times)
        outcomes, self._outcomes = dict(self._outcomes), Counter()
        return PathSample(
            round(sum(count for _, count in self._counts) / _WINDOW_S, 2),
            quantile(times, 0.50),
            quantile(times, 0.95),
            outcomes,
        )


def quantile(rising: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile; None of nothing."""
    if not rising:
        return None
    return round(rising[max(0, math.ceil(share * len(rising)) - 1)], 4)
