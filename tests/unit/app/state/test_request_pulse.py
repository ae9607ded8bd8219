"""The requests of one path over the last ten seconds."""

from __future__ import annotations

import pytest

from app.state.board_reports import PathReport
from app.state.request_pulse import RequestPulse, quantile


@pytest.mark.parametrize(
    ("times", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.95, 3.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0)],
)
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(
    times: list[float], share: float, expected: float | None
) -> None:
    assert quantile(times, share) == expected


def test_of_a_hundred_the_95th_percentile_is_the_95th() -> None:
    assert quantile([float(rank) for rank in range(1, 101)], 0.95) == 95.0


def test_rates_and_times_are_of_the_last_ten_seconds_and_outcomes_of_this_one() -> None:
    pulse = RequestPulse()
    pulse.add(PathReport({"answered": 10}, [0.1]), now_s=0.0)
    assert pulse.tick(0.5).outcomes == {"answered": 10}
    pulse.add(PathReport({"answered": 4, "queue_full": 1}, [0.3]), now_s=9.0)
    sample = pulse.tick(11.0)
    assert (sample.requests_per_s, sample.ttft_p50_s) == (0.5, 0.3)
    assert sample.outcomes == {"answered": 4, "queue_full": 1}
