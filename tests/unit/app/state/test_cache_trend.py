"""A cache that collapses, one that is worn out by more requests, and neither."""

from __future__ import annotations

from app.config.scaling import CollapseConfig
from app.state.cache_trend import CacheTrend, Moment


class Rig:
    def __init__(self) -> None:
        self.trend = CacheTrend(CollapseConfig(), smoothing_s=20.0)
        self.now_s = 0.0

    def see(self, requests: float, tokens: float, hit_ratio: float | None, seconds: int = 1, replicas: int = 2) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.trend.observe(Moment(requests, tokens, replicas, hit_ratio), self.now_s, 1.0)


def usual(hit_ratio: float | None = 0.9) -> Rig:
    rig = Rig()
    rig.see(4, 1000, hit_ratio, 1800)
    return rig


def test_usual_load_is_neither() -> None:
    rig = usual()
    assert not rig.trend.collapsed
    assert rig.trend.wanted_replicas == 0


def test_fewer_hits_of_as_many_requests_are_a_collapse() -> None:
    rig = usual()
    rig.see(4, 3000, 0.4, 300)
    assert rig.trend.collapsed


def test_dearer_requests_are_suspected_until_the_hit_ratio_tells() -> None:
    rig = usual()
    rig.see(4, 3000, 0.9, 30)
    assert rig.trend.collapsed
    rig.see(4, 3000, 0.9, 100)
    assert not rig.trend.collapsed  # longer prompts, not a colder cache


def test_without_lookups_nothing_is_suspected() -> None:
    rig = usual(hit_ratio=None)
    rig.see(4, 3000, None, 30)
    assert not rig.trend.collapsed


def test_more_requests_on_a_cache_that_hits_less_want_the_usual_cache_each() -> None:
    rig = usual()
    rig.see(6, 3000, 0.5, 120)
    assert not rig.trend.collapsed
    assert 2.9 < rig.trend.wanted_replicas < 3.1


def test_more_requests_alone_want_nothing() -> None:
    rig = usual()
    rig.see(8, 2000, 0.9, 120)
    assert rig.trend.wanted_replicas == 0
    assert not rig.trend.collapsed


def test_a_collapse_is_over_when_the_hits_return() -> None:
    rig = usual()
    rig.see(4, 3000, 0.4, 300)
    rig.see(4, 1000, 0.9, 120)
    assert not rig.trend.collapsed


def test_a_collapse_that_lasts_becomes_the_usual() -> None:
    rig = usual()
    rig.see(4, 3000, 0.4, 1900)
    assert not rig.trend.collapsed
