"""What a new replica should compute first, within bounds, and apart by salt."""

from __future__ import annotations

from app.requests import RequestPath
from app.state.board_reports import Prefix, PrefixCount
from app.state.hot_prefixes import HotPrefixes
from tests.fakes import FakeClock

HOT, COLD = RequestPath.HOT, RequestPath.COLD


def prefixes(clock: FakeClock | None = None, entries: int = 10, tokens: int = 1000) -> HotPrefixes:
    return HotPrefixes(entries, tokens, half_life_s=100.0, clock=clock or FakeClock())


def seen(
    key: int, requests: int = 1, length: int | None = 10, engines: RequestPath = HOT, salt: str | None = None
) -> PrefixCount:
    prefix = None if length is None else Prefix((key,) * length, salt)
    return PrefixCount(engines, key, requests, prefix)


def test_content_is_asked_for_until_it_has_come() -> None:
    known = prefixes()
    assert known.count([seen(1, length=None), seen(2)]) == [1]
    assert known.hottest(HOT, 100) == [Prefix((2,) * 10)]
    assert known.count([seen(1)]) == []
    assert len(known.hottest(HOT, 100)) == 2


def test_the_hottest_come_first_and_only_those_of_the_path() -> None:
    known = prefixes()
    known.count([seen(1, 3), seen(2, 5), seen(3, 9, engines=COLD)])
    assert [prefix.tokens[0] for prefix in known.hottest(HOT, 100)] == [2, 1]
    assert [prefix.tokens[0] for prefix in known.hottest(COLD, 100)] == [3]


def test_what_does_not_fit_makes_room_for_what_does() -> None:
    known = prefixes()
    known.count([seen(1, 9, length=80), seen(2, 5, length=50), seen(3, 2, length=20)])
    assert [prefix.tokens[0] for prefix in known.hottest(HOT, 100)] == [1, 3]


def test_what_prefixes_have_in_common_is_computed_and_paid_for_once() -> None:
    known = prefixes()
    long, short = Prefix(tuple(range(80))), Prefix(tuple(range(50)))
    counts = [PrefixCount(HOT, 1, 3, short), PrefixCount(HOT, 2, 2, long)]
    known.count([*counts, PrefixCount(HOT, 3, 1, Prefix(long.tokens, "ours"))])
    assert known.hottest(HOT, 80) == [short, long]
    assert known.hottest(HOT, 160) == [short, long, Prefix(long.tokens, "ours")]
    known.count([PrefixCount(HOT, 2, 9)])
    assert known.hottest(HOT, 80) == [long]


def test_a_salt_stays_with_its_prefix_and_is_not_shown() -> None:
    known = prefixes()
    known.count([seen(1, salt="a tenant's"), seen(2)])
    assert {prefix.tokens[0]: prefix.cache_salt for prefix in known.hottest(HOT, 100)} == {1: "a tenant's", 2: None}
    assert [(shown.salted, shown.length_tokens) for shown in known.shown(5)] == [(True, 10), (False, 10)]
    assert "tenant" not in repr(known.shown(5))


def test_what_is_not_asked_for_any_more_cools_down_and_is_forgotten() -> None:
    clock = FakeClock()
    known = prefixes(clock)
    known.count([seen(1, 8)])
    clock.advance(100)
    known.count([seen(2, 5)])
    assert [prefix.tokens[0] for prefix in known.hottest(HOT, 100)] == [2, 1]
    clock.advance(700)
    known.count([seen(2, 1)])
    assert [prefix.tokens[0] for prefix in known.hottest(HOT, 100)] == [2]


def test_neither_entries_nor_tokens_grow_without_bound() -> None:
    known = prefixes(entries=10, tokens=200)
    for key in range(1000):
        known.count([seen(key, requests=key, length=60)])
        assert len(known) <= 10
        assert known.held_tokens <= 200
    assert known.hottest(HOT, 1000)[0].tokens[0] == 999


def test_a_prefix_longer_than_everything_that_may_be_kept_is_never_kept() -> None:
    known = prefixes(tokens=100)
    assert known.count([seen(1, length=101)]) == [1]
    assert known.held_tokens == 0
