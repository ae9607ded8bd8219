"""Recorded arrivals of a public trace: enough capacity at nearly all times, and no swinging.

`KVPULSE_TRACES_DIR` names a folder with `azure_code_2023.csv` and `azure_conv_2023.csv` (Azure's public LLM inference
trace of 2023: TIMESTAMP, ContextTokens, GeneratedTokens).
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from app.config.scaling import ScalingConfig
from tests.unit.app.decisions.simulated_fleet import CAPACITY, Engines, Simulation

TRACES = os.environ.get("KVPULSE_TRACES_DIR")
_SMOOTHED_S = 10

pytestmark = pytest.mark.skipif(TRACES is None, reason="KVPULSE_TRACES_DIR names no folder of traces")


def arrivals(name: str) -> tuple[Callable[[float], float], float]:
    """Tokens per second by seconds since the first arrival, as an ingress reports them, and the trace's length."""
    tokens: dict[int, float] = defaultdict(float)
    first: datetime | None = None
    with Path(TRACES or "", name).open() as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            tokens[int((at - first).total_seconds())] += int(row["ContextTokens"]) + int(row["GeneratedTokens"])
    last = max(tokens)

    def per_s(now_s: float) -> float:
        seconds = range(max(0, int(now_s) - _SMOOTHED_S + 1), int(now_s) + 1)
        return sum(tokens.get(second, 0.0) for second in seconds) / len(seconds)

    return per_s, float(last)


def turns(targets: list[int]) -> int:
    """How often growing became shrinking or the reverse."""
    ups = [after > before for before, after in pairwise(targets)]
    return sum(before != after for before, after in pairwise(ups))


@pytest.mark.parametrize(
    ("trace", "late_ratio", "most_turns"),
    [("azure_conv_2023.csv", 0.0, 1), ("azure_code_2023.csv", 0.05, 3)],  # code comes in bursts of 10 s, up to 13-fold
)
def test_recorded_load_is_carried_without_swinging(trace: str, late_ratio: float, most_turns: int) -> None:
    demand, length_s = arrivals(trace)
    mean = sum(demand(second) for second in range(int(length_s))) / length_s
    scale = 4 * CAPACITY / mean  # four replicas would be busy all the time
    hot = Engines(lambda now_s: scale * demand(now_s), running=6, most=16)
    simulation = Simulation(ScalingConfig(capacity_tokens_per_s=CAPACITY), hot)
    late_s = 0
    for _ in range(int(length_s)):
        simulation.run(1)
        late_s += hot.backlog > 5 * hot.running * CAPACITY
    assert late_s / length_s <= late_ratio
    assert turns(hot.targets) <= most_turns, hot.targets
