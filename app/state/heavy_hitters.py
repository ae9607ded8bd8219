"""Which prompt prefixes come up again and again: a bounded sketch over the hashes of prefix blocks."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from app.config.admission import HeavyHittersConfig

# Forward decay: instead of shrinking every count, a new request weighs 2 ** (half-lives since the start). Beyond this
# many half-lives all counts are divided, long before a float overflows.
_RESCALE_HALF_LIVES = 256.0
_DEPTHS = (1, 2, 3, *(base << octave for octave in range(24) for base in (4, 6)))


class HeavyHitters:
    """Space-Saving with exponential decay.

    A full sketch gives the place of its smallest count to a newcomer, which inherits that count as its possible error:
    counts are never too low, and too high by at most the error. What is frequent is judged by count minus error, so a
    flood of prefixes that come once makes none of them frequent.

    Of a prompt's blocks only those at depths 1, 2, 3, 4, 6, 8, 12, 16, ... are counted. A frequent prefix is found at
    most a third shorter than it is, and a prompt of 128 blocks costs 14 updates.

    Args:
        rules: capacity, half-life and what counts as frequent.
        clock: monotonic seconds.
    """

    def __init__(self, rules: HeavyHittersConfig, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._origin_s = clock()
        self._requests = 0.0
        self._counts: dict[int, float] = {}
        self._errors: dict[int, float] = {}
        # One entry for each counted hash. Counts only grow, so an entry's count is at most the true one.
        self._smallest: list[tuple[float, int]] = []

    def see(self, hashes: Sequence[int]) -> int:
        """Count a prompt, then tell how much of it is frequent.

        Args:
            hashes: chain hashes of its full blocks, as `ChainHasher.prompt` gives them.

        Returns:
            Blocks of its longest frequent prefix, 0 without one.
        """
        weight = self._weight()
        self._requests += weight
        for depth in _depths(hashes):
            self._add(hashes[depth - 1], weight)
        return self.frequent_blocks(hashes)

    def frequent_blocks(self, hashes: Sequence[int]) -> int:
        """What `see` would return, were the prompt not counted."""
        enough = max(self._rules.min_requests * self._weight(), self._rules.min_share * self._requests)
        frequent = 0
        for depth in _depths(hashes):
            key = hashes[depth - 1]
            if key in self._counts and self._counts[key] - self._errors[key] >= enough:
                frequent = depth
        return frequent

    def __len__(self) -> int:
        return len(self._counts)

    def _add(self, key: int, weight: float) -> None:
        if key in self._counts:
            self._counts[key] += weight
            return
        inherited = self._evict_smallest() if len(self._counts) >= self._rules.capacity else 0.0
        self._counts[key] = inherited + weight
        self._errors[key] = inherited
        heapq.heappush(self._smallest, (inherited + weight, key))

    def _evict_smallest(self) -> float:
        while True:
            noted, key = self._smallest[0]
            count = self._counts[key]
            if noted == count:
                heapq.heappop(self._smallest)
                del self._counts[key], self._errors[key]
                return count
            heapq.heapreplace(self._smallest, (count, key))

    def _weight(self) -> float:
        """Of a request now, relative to one at the origin."""
        half_lives = (self._clock() - self._origin_s) / self._rules.half_life_s
        if half_lives < _RESCALE_HALF_LIVES:
            return math.exp2(half_lives)
        self._rescale(math.exp2(-half_lives) if half_lives < 1000 else 0.0)
        return 1.0

    def _rescale(self, factor: float) -> None:
        self._origin_s = self._clock()
        self._requests *= factor
        self._counts = {key: count * factor for key, count in self._counts.items()}
        self._errors = {key: error * factor for key, error in self._errors.items()}
        self._smallest = [(count, key) for key, count in self._counts.items()]
        heapq.heapify(self._smallest)


def _depths(hashes: Sequence[int]) -> tuple[int, ...]:
    return _DEPTHS[: bisect_right(_DEPTHS, len(hashes))]
