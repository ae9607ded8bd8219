"""How load changes over a run, and when requests arrive under it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping

STEP_S = 0.05  # resolution of the integral of the rate

# From elapsed share of the run (0 to 1) to a multiple of the given rate or number of users.
Shape = Callable[[float], float]


def constant(elapsed: float) -> float:
    return 1.0


def step(elapsed: float) -> float:
    """A quarter, a half, three quarters, all: shows where latency breaks."""
    return min(4, math.floor(elapsed * 4) + 1) / 4


def spike(elapsed: float) -> float:
    """Four times the load for the tenth of the run in its middle."""
    return 4.0 if 0.45 <= elapsed < 0.55 else 1.0


def day(elapsed: float) -> float:
    """One day: a fifth of the load at night, all of it at noon."""
    return 0.6 - 0.4 * math.cos(2 * math.pi * elapsed)


SHAPES: Mapping[str, Shape] = {"constant": constant, "step": step, "spike": spike, "day": day}


def arrival_times(
    rng: random.Random, rate_per_s: float, duration_s: float, shape: Shape = constant, gap_variation: float = 1.0
) -> Iterator[float]:
    """Arrival offsets in seconds, ascending, all below `duration_s`.

    Args:
        rate_per_s: arrivals per second where the shape is 1.
        gap_variation: standard deviation over mean of the gaps: 1 is a Poisson process, above 1 comes in bursts.
    """
    # Gaps of mean 1 in operational time, which passes `rate * shape` times as fast as real time.
    order = 1 / gap_variation**2
    due = rng.gammavariate(order, 1 / order)
    passed = 0.0
    for index in range(math.ceil(duration_s / STEP_S)):
        start_s = index * STEP_S
        speed = rate_per_s * shape(start_s / duration_s)
        while speed > 0 and due <= passed + speed * STEP_S:
            at_s = start_s + (due - passed) / speed
            if at_s >= duration_s:
                return
            yield at_s
            due += rng.gammavariate(order, 1 / order)
        passed += speed * STEP_S
