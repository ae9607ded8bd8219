from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from loadtest.records import PlannedRequest, TrafficClass
from loadtest.schedule import SlotPool, closed_loop_user, open_loop
from loadtest.shapes import SHAPES, Shape, arrival_times, constant, day, spike, step
from loadtest.workloads import DEFAULT_PROFILES, WorkloadConfig, with_weights

IDE_AND_CHAT = with_weights(DEFAULT_PROFILES, {TrafficClass.IDE: 3.0, TrafficClass.CHAT: 1.0})


def seeded(seed: int) -> random.Random:
    return random.Random(seed)


def pool(seed: int = 0, sessions: int = 2) -> SlotPool:
    workload = WorkloadConfig(model="m", context_tokens=2048, seed=seed, profiles=IDE_AND_CHAT)
    return SlotPool(workload, dict.fromkeys(TrafficClass, sessions))


def schedule(seed: int) -> list[PlannedRequest]:
    rng = seeded(seed)
    return open_loop(pool(seed), arrival_times(rng, 20.0, 10.0), rng)


def gaps(variation: float) -> list[float]:
    times = list(arrival_times(seeded(3), 50.0, 400.0, constant, variation))
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_variation_asked_for(variation: float) -> None:
    measured = gaps(variation)
    assert mean(measured) == pytest.approx(1 / 50, rel=0.1)
    assert pstdev(measured) / mean(measured) == pytest.approx(variation, rel=0.1)


@pytest.mark.parametrize("shape", SHAPES.values())
def test_arrivals_are_ascending_within_the_run_and_as_many_as_the_shape_says(shape: Shape) -> None:
    times = list(arrival_times(seeded(4), 30.0, 100.0, shape))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 100
    wanted = mean(shape(elapsed / 1000) for elapsed in range(1000)) * 30.0 * 100.0
    assert len(times) == pytest.approx(wanted, rel=0.1)


def test_a_spike_is_four_times_the_load_and_a_day_has_its_peak_at_noon() -> None:
    times = list(arrival_times(seeded(5), 50.0, 100.0, spike))
    inside = sum(45 <= at_s < 55 for at_s in times)
    assert inside / 10 == pytest.approx(200, rel=0.1)
    assert (day(0.0), day(0.5)) == (pytest.approx(0.2), pytest.approx(1.0))
    assert [step(elapsed) for elapsed in (0.0, 0.3, 0.6, 1.0)] == [0.25, 0.5, 0.75, 1.0]


def test_a_schedule_repeats_with_its_seed() -> None:
    assert schedule(1) == schedule(1)
    assert [planned.at_s for planned in schedule(1)] != [planned.at_s for planned in schedule(2)]


def test_classes_come_by_weight_and_keys_are_unique() -> None:
    rng = seeded(6)
    drawn = open_loop(pool(), [0.0] * 2000, rng)
    shares = Counter(planned.traffic_class for planned in drawn)
    assert set(shares) == {TrafficClass.IDE, TrafficClass.CHAT}
    assert shares[TrafficClass.IDE] / 2000 == pytest.approx(0.75, abs=0.04)
    assert len({planned.key for planned in drawn}) == 2000


def test_after_a_warmup_only_sessions_that_replace_others_are_first_touches() -> None:
    warmed = pool(sessions=4)
    assert all(planned.first_touch for planned in warmed.warmup())
    drawn = open_loop(warmed, [0.0] * 400, seeded(7))
    first = [planned.key for planned in drawn if planned.first_touch]
    assert first
    assert all(key.endswith("/0") and ".0/" not in key for key in first)
    cold = open_loop(pool(sessions=4), [0.0] * 400, seeded(7))
    assert sum(planned.first_touch for planned in cold) > len(first)


def test_a_closed_loop_user_goes_on_without_end_and_repeats_with_the_seed() -> None:
    def first_keys() -> list[str]:
        user = closed_loop_user(pool(sessions=1), seeded(8))
        return [next(user).key for _ in range(50)]

    assert first_keys() == first_keys()
