"""The prefixes that a new replica should compute first: few, bounded in tokens, forgotten when they cool down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from app.requests import RequestPath
from app.state.board_reports import Prefix, PrefixCount

_COLD = 0.5  # a count that has decayed to this is forgotten


class HotPrefix(msgspec.Struct, frozen=True):
    """What may be shown of a prefix. `salted`: only requests with one cache salt can hit it."""

    engines: RequestPath
    length_tokens: int
    requests: float
    salted: bool


class _Entry:
    __slots__ = ("at_s", "count", "prefix")

    def __init__(self, at_s: float) -> None:
        self.count = 0.0
        self.at_s = at_s
        self.prefix: Prefix | None = None


class HotPrefixes:
    """Counts requests by prefix, with exponential decay. For one thread.

    Args:
        max_entries: prefixes counted.
        max_tokens: of all prefixes together whose content is kept.
        half_life_s: of a count.
        clock: monotonic seconds.
    """

    def __init__(self, max_entries: int, max_tokens: int, half_life_s: float, clock: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._half_life_s = half_life_s
        self._clock = clock
        self._entries: dict[tuple[RequestPath, int], _Entry] = {}

    def count(self, counts: Sequence[PrefixCount]) -> list[int]:
        """Take what an ingress has counted; returns the keys whose content it should send next."""
        wanted = []
        for seen in counts:
            entry = self._entries.setdefault((seen.engines, seen.key), _Entry(self._clock()))
            entry.count = self._now(entry) + seen.requests
            entry.at_s = self._clock()
            if entry.prefix is None and seen.prefix is not None and len(seen.prefix.tokens) <= self._max_tokens:
                entry.prefix = seen.prefix
            if entry.prefix is None:
                wanted.append(seen.key)
        self._forget()
        return wanted

    def hottest(self, engines: RequestPath, max_tokens: int) -> list[Prefix]:
        """The hottest first, as many as an engine can compute with `max_tokens`; one that is too long makes room for
        others. What two have in common is computed once.
        """
        chosen: list[Prefix] = []
        for (home, _), entry in self._hottest_first():
            if home is engines and entry.prefix is not None:
                uncached_tokens = _uncached_tokens(entry.prefix, chosen)
                if 0 < uncached_tokens <= max_tokens:
                    chosen.append(entry.prefix)
                    max_tokens -= uncached_tokens
        return chosen

    def shown(self, most: int) -> list[HotPrefix]:
        """The hottest of all paths, without their content."""
        known = [(home, entry, entry.prefix) for (home, _), entry in self._hottest_first() if entry.prefix is not None]
        return [
            HotPrefix(home, len(prefix.tokens), round(self._now(entry), 1), prefix.cache_salt is not None)
            for home, entry, prefix in known[:most]
        ]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_tokens(self) -> int:
        return sum(len(entry.prefix.tokens) for entry in self._entries.values() if entry.prefix is not None)

    def _forget(self) -> None:
        room = self._max_tokens
        kept = {}
        for key, entry in self._hottest_first()[: self._max_entries]:
            room -= 0 if entry.prefix is None else len(entry.prefix.tokens)
            if room < 0 or self._now(entry) < _COLD:
                break
            kept[key] = entry
        self._entries = kept

    def _hottest_first(self) -> list[tuple[tuple[RequestPath, int], _Entry]]:
        return sorted(self._entries.items(), key=lambda item: self._now(item[1]), reverse=True)

    def _now(self, entry: _Entry) -> float:
        return entry.count * math.exp2((entry.at_s - self._clock()) / self._half_life_s)


def _uncached_tokens(prefix: Prefix, computed: Sequence[Prefix]) -> int:
    """Of the prefix, beside those that are computed: 0 where one of them begins with it."""
    held = 0
    for other in computed:
        common = min(len(other.tokens), len(prefix.tokens))
        if other.cache_salt == prefix.cache_salt and other.tokens[:common] == prefix.tokens[:common]:
            held = max(held, common)
    return len(prefix.tokens) - held
