"""What is expected to arrive some time from now, by the recent trend and the usual day, and how sure that is."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from app.config.scaling import ForecastConfig

DAY_S = 86_400.0
_LEVEL_S = 60.0
_STEP_S = 5.0  # arrivals are taken in so often: bounds the memory of open forecasts
_JUDGED = 360  # half an hour of steps
_LEAST_JUDGED = 180  # fewer would be ruled by one surge, which nothing foretells
_MOST_EXCEEDED = 1.25  # by surges, which no spare capacity would have met either
_TODAY_S = 1800.0
_MOST_UNUSUAL = 2.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Per second. `upper` is what most forecasts would have kept under, widened as the last half hour teaches."""

    expected: float
    upper: float


class DailyPattern:
    """The usual amount per second in each part of the day. Days in UTC: only the distance between parts matters."""

    def __init__(self, slots: int, day_weight: float) -> None:
        self._weight = day_weight
        self._slot_s = DAY_S / slots
        self._usual: list[float | None] = [None] * slots
        self._slot = -1
        self._sum, self._count = 0.0, 0
        self._today = 1.0  # how the last half hour compares with what is usual

    def add(self, amount: float, now_s: float, elapsed_s: float) -> None:
        usual = self._at(now_s)
        if usual:
            unusual = min(_MOST_UNUSUAL, amount / usual)
            self._today -= math.expm1(-elapsed_s / _TODAY_S) * (unusual - self._today)
        slot = self._slot_of(now_s)
        if slot != self._slot:
            self._close()
            self._slot, self._sum, self._count = slot, 0.0, 0
        self._sum += amount
        self._count += 1

    def expected(self, time_s: float) -> float:
        """What is usual then, on a day like today; 0 where no day has shown it."""
        return self._today * (self._at(time_s) or 0.0)

    def _at(self, time_s: float) -> float | None:
        """Between the middles of two parts, so that nothing jumps where one ends."""
        position = time_s / self._slot_s - 0.5
        first = math.floor(position)
        left, right = (self._usual[slot % len(self._usual)] for slot in (first, first + 1))
        return None if left is None or right is None else left + (right - left) * (position - first)

    def _close(self) -> None:
        if self._count:
            usual, mean = self._usual[self._slot], self._sum / self._count
            self._usual[self._slot] = mean if usual is None else usual + self._weight * (mean - usual)

    def _slot_of(self, time_s: float) -> int:
        return int(time_s // self._slot_s) % len(self._usual)


class DemandForecast:
    """Holt's level and damped trend, or what is usual at that time of day, whichever is more.

    The interval is no assumption: every forecast is kept until its time has come, and compared. It is a factor, so
    that nothing at all is expected where nothing comes.
    """

    def __init__(self, rules: ForecastConfig) -> None:
        self._rules = rules
        self._pattern = DailyPattern(rules.day_slots, rules.day_weight)
        self._level = self._trend = 0.0
        self._at_s: float | None = None
        self._open: deque[tuple[float, float]] = deque()  # (when it comes due, what was expected)
        self._exceeded: deque[float] = deque(maxlen=_JUDGED)  # what came over what had been expected

    def observe(self, amount: float, now_s: float, horizon_s: float) -> None:
        """Take in what arrives per second now. Between two steps nothing is kept."""
        if self._at_s is None:
            self._level, self._at_s = amount, now_s
        elapsed_s = now_s - self._at_s
        if elapsed_s < _STEP_S:
            return
        self._at_s = now_s
        self._pattern.add(amount, now_s, elapsed_s)
        before, fresh = self._level, -math.expm1(-elapsed_s / _LEVEL_S)
        drifted = before + self._trend * elapsed_s
        self._level = max(0.0, drifted + fresh * (amount - drifted))
        slope = (self._level - before) / elapsed_s
        self._trend += -math.expm1(-elapsed_s / self._rules.trend_s) * (slope - self._trend)
        self._judge(now_s)
        self._open.append((now_s + horizon_s, self._expected(now_s, horizon_s)))

    def at(self, now_s: float, horizon_s: float) -> Forecast | None:
        """None until enough forecasts have met what came."""
        if len(self._exceeded) < _LEAST_JUDGED:
            return None
        expected = self._expected(now_s, horizon_s)
        usual = sorted(self._exceeded)[int(self._rules.quantile * len(self._exceeded))]
        return Forecast(expected, expected * max(1.0, usual))

    def _expected(self, now_s: float, horizon_s: float) -> float:
        damping_s = self._rules.trend_s
        change = self._trend * damping_s * -math.expm1(-horizon_s / damping_s)
        return max(0.0, self._level + change, self._pattern.expected(now_s + horizon_s))

    def _judge(self, now_s: float) -> None:
        while self._open and self._open[0][0] <= now_s:
            _, expected = self._open.popleft()
            tiny = self._level <= 0
            self._exceeded.append(1.0 if tiny else min(_MOST_EXCEEDED, self._level / max(expected, 1e-9)))
