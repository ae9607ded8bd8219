"""Signals become a level, with a memory; what is unknown becomes none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.admission import WatermarksConfig
from app.state.pressure import Pressure, PressureGauge, Signal, water_level
from app.state.watermarks import Level

WATERMARKS = WatermarksConfig()
LIGHT = Pressure(kv_usage_ratio=0.1, queued_prefill_s=None, preemptions_per_s=0.0)


def pressure(kv: float = 0.1, prefill_s: float | None = None, preemptions: float = 0.0) -> Pressure:
    return Pressure(kv, prefill_s, preemptions)


@pytest.mark.parametrize(
    ("levels", "poured", "level"),
    [([0.5], 0.25, 0.75), ([0.0, 1.0], 0.5, 0.5), ([0.0, 1.0], 1.0, 1.0), ([0.0, 1.0], 2.0, 1.5), ([0.2, 0.2], 0, 0.2)],
)
def test_what_is_poured_fills_the_lowest_first(levels: list[float], poured: float, level: float) -> None:
    assert water_level(levels, poured) == pytest.approx(level)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).map(sorted), st.floats(0, 8))
def test_nothing_of_what_is_poured_is_lost(levels: list[float], poured: float) -> None:
    level = water_level(levels, poured)
    assert sum(max(0.0, level - before) for before in levels) == pytest.approx(poured, abs=1e-9)


@pytest.mark.parametrize(
    ("seen", "signal"),
    [
        (pressure(kv=0.92), Signal.KV_USAGE_RATIO),
        (pressure(prefill_s=40.0), Signal.QUEUED_PREFILL_S),
        (pressure(preemptions=3.0), Signal.PREEMPTIONS_PER_S),
        (pressure(kv=0.86, preemptions=3.0), Signal.PREEMPTIONS_PER_S),
    ],
)
def test_the_worst_signal_sets_the_level_and_is_named(seen: Pressure, signal: Signal) -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(seen, 0.0) is Level.REFUSE_LONG
    assert gauge.signal is signal


def test_compression_that_lasts_turns_into_shedding_and_ends_with_it() -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(pressure(kv=0.96), 0.0) is Level.COMPRESS
    assert gauge.update(pressure(kv=0.96), 4.9) is Level.COMPRESS
    assert gauge.update(pressure(kv=0.92), 5.0) is Level.SHED  # still within the hysteresis of compress
    assert gauge.update(pressure(kv=0.89), 6.0) is Level.REFUSE_LONG
    assert gauge.update(pressure(kv=0.96), 7.0) is Level.COMPRESS


def test_the_level_holds_while_nothing_is_known_and_then_becomes_an_alert() -> None:
    gauge = PressureGauge(WATERMARKS)
    gauge.update(pressure(kv=0.92), 0.0)
    assert gauge.update(None, 1.0) is Level.REFUSE_LONG
    assert gauge.update(None, 10.9) is Level.REFUSE_LONG
    assert gauge.update(None, 11.0) is Level.ALERT
    assert gauge.signal is None
    assert gauge.update(LIGHT, 12.0) is Level.NORMAL


def test_a_gauge_that_never_heard_anything_is_not_pressed_but_alerts() -> None:
    gauge = PressureGauge(WATERMARKS)
    assert gauge.update(None, 0.0) is Level.NORMAL
    assert gauge.update(None, 20.0) is Level.ALERT
