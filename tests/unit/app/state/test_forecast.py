"""What is expected follows the trend and the day, and its upper bound what was not foreseen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from app.config.scaling import ForecastConfig
from app.state.forecast import DAY_S, DemandForecast, Forecast

STEP_S = 5.0
HORIZON_S = 90.0


def fed(demand: Callable[[float], float], seconds: float, slots: int = 96) -> Forecast | None:
    forecast = DemandForecast(ForecastConfig(day_slots=slots))
    now_s = 0.0
    while now_s <= seconds:
        forecast.observe(demand(now_s), now_s, HORIZON_S)
        now_s += STEP_S
    return forecast.at(now_s - STEP_S, HORIZON_S)


def known(found: Forecast | None) -> Forecast:
    assert found is not None
    return found


def test_there_is_no_interval_before_forecasts_have_met_what_came() -> None:
    assert fed(lambda now_s: 100.0, 600) is None


def test_constant_demand_is_expected_to_stay() -> None:
    found = known(fed(lambda now_s: 100.0, 2000))
    assert found.expected == pytest.approx(100)
    assert found.upper == pytest.approx(100)


def test_nothing_is_expected_where_nothing_comes() -> None:
    found = known(fed(lambda now_s: 5000.0 if now_s < 3600 else 0.0, 5400))
    assert found.upper < 1


def test_rising_demand_is_expected_to_rise() -> None:
    found = known(fed(lambda now_s: 100 + now_s, 2000))
    assert found.expected > 2100
    assert found.upper >= 2000 + HORIZON_S


def test_the_bound_widens_with_what_was_not_foreseen() -> None:
    chance = random.Random(7)
    calm = known(fed(lambda now_s: 100 * max(0, chance.gauss(1, 0.05)), 4000))
    wild = known(fed(lambda now_s: 100 * max(0, chance.gauss(1, 0.8)), 4000))
    assert calm.upper / calm.expected < wild.upper / wild.expected


def test_a_surge_widens_it_only_so_far() -> None:
    found = known(fed(lambda now_s: 10.0 if now_s < 3600 else 10_000.0, 4500))
    assert found.upper <= 1.5 * 10_000


def test_a_rise_that_comes_every_day_is_expected_before_it_begins() -> None:
    def day(now_s: float) -> float:
        return 1000.0 if 9 * 3600 <= now_s % DAY_S < 18 * 3600 else 100.0

    until_s = DAY_S + 9 * 3600 - 60
    assert known(fed(day, until_s)).expected > 120
    assert known(fed(day, until_s - DAY_S)).expected == pytest.approx(100, rel=0.02)


def test_the_bound_holds_for_most_of_a_noisy_day() -> None:
    chance = random.Random(3)
    forecast = DemandForecast(ForecastConfig())
    due: list[tuple[float, float]] = []
    kept = judged = 0
    for step in range(int(DAY_S / STEP_S)):
        now_s = step * STEP_S
        demand = 500 - 400 * math.cos(2 * math.pi * now_s / DAY_S)
        forecast.observe(max(0.0, demand * chance.gauss(1, 0.2)), now_s, HORIZON_S)
        found = forecast.at(now_s, HORIZON_S)
        if found is not None:
            due.append((now_s + HORIZON_S, found.upper))
        while due and due[0][0] <= now_s:
            judged += 1
            kept += demand <= due.pop(0)[1]
    assert kept / judged > 0.85
