"""Requests that wait for room: the most urgent first, nobody for ever, never more than the bounds allow."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.config.admission import QueuesConfig
from app.requests import PRIORITY_BAND, Refusal, RequestPath

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Place(Generic[T]):
    """One request's place in a line. Places sort by who goes first."""

    rank: float
    number: int
    item: T = field(compare=False)
    path: RequestPath = field(compare=False)
    tokens: int = field(compare=False)
    deadline_s: float = field(compare=False)


class WaitingLine(Generic[T]):
    """A priority queue with ageing, deadlines, and bounds by count and tokens for each path.

    A request's urgency grows while it waits, by one path's priority band every `ageing_s`. Growth is the same for all,
    so the order of two requests never changes, and a place is fixed when it is taken: `priority + rate * offered_at`.
    """

    def __init__(self, rules: QueuesConfig) -> None:
        self._rules = rules
        self._ageing_per_s = PRIORITY_BAND / rules.ageing_s
        self._places: list[Place[T]] = []
        self._requests: Counter[RequestPath] = Counter()
        self._tokens: Counter[RequestPath] = Counter()
        self._taken = 0

    def offer(
        self, item: T, path: RequestPath, priority: int, tokens: int, now_s: float, deadline_s: float
    ) -> Place[T] | Refusal:
        """Take a place, or learn which bound forbids it.

        Args:
            priority: vLLM's, lower is more urgent.
            tokens: prompt tokens still to compute. A request longer than the bound may wait as the only one.
            deadline_s: on the same clock as `now_s`; after it the place is given up (`expire`).
        """
        refusal = self.refusal(path, tokens)
        if refusal is not None:
            return refusal
        self._taken += 1
        place = Place(priority + self._ageing_per_s * now_s, self._taken, item, path, tokens, deadline_s)
        insort(self._places, place)
        self._requests[path] += 1
        self._tokens[path] += tokens
        return place

    def refusal(self, path: RequestPath, tokens: int) -> Refusal | None:
        """Which bound forbids a place now, or None."""
        bounds = self._rules.bounds(path)
        if self._requests[path] >= bounds.max_requests:
            return Refusal.QUEUE_FULL
        if self._requests[path] and self._tokens[path] + tokens > bounds.max_tokens:
            return Refusal.QUEUE_TOKENS_FULL
        return None

    def next(self, now_s: float) -> T | None:
        """Take the most urgent request that is not past its deadline out of the line."""
        for index, place in enumerate(self._places):
            if place.deadline_s > now_s:
                self._take(index)
                return place.item
        return None

    def expire(self, now_s: float) -> list[T]:
        """Take out all requests whose deadline has passed."""
        late = [place for place in self._places if place.deadline_s <= now_s]
        for place in late:
            self.cancel(place)
        return [place.item for place in late]

    def cancel(self, place: Place[T]) -> bool:
        """Give a place up; tells whether it was still held."""
        index = bisect_left(self._places, place)
        if index == len(self._places) or self._places[index] is not place:
            return False
        self._take(index)
        return True

    def items(self) -> list[T]:
        """All that wait, the most urgent first."""
        return [place.item for place in self._places]

    @property
    def tokens(self) -> int:
        """Prompt tokens still to compute, of all that wait."""
        return self._tokens.total()

    def __len__(self) -> int:
        return len(self._places)

    def _take(self, index: int) -> None:
        place = self._places.pop(index)
        self._requests[place.path] -= 1
        self._tokens[place.path] -= place.tokens
