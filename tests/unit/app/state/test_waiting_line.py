"""A line serves the urgent first and everyone in time, and takes no more than its bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.config.admission import QueuesConfig
from app.requests import Refusal, RequestPath
from app.state.waiting_line import Place, WaitingLine

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
WIDE = {"max_requests": 100, "max_tokens": 100_000}
RULES = QueuesConfig.model_validate(
    {"hot": {"max_requests": 3, "max_tokens": 1000}, "warm": WIDE, "cold": WIDE, "ageing_s": 10}
)


def offer(line: WaitingLine[Any], item: Any, path: RequestPath, now_s: float = 0.0, **given: Any) -> Any:
    values = {"priority": path.priority(), "tokens": 10, "deadline_s": now_s + 60} | given
    return line.offer(item, path, now_s=now_s, **values)


def test_the_more_urgent_goes_first_and_equals_in_the_order_they_came() -> None:
    line: WaitingLine[str] = WaitingLine(RULES)
    for item, path in (("cold", COLD), ("warm", WARM), ("hot", HOT), ("hot too", HOT)):
        offer(line, item, path)
    assert [line.next(0.0) for _ in range(5)] == ["hot", "hot too", "warm", "cold", None]


def test_a_request_that_has_waited_passes_new_ones_of_the_path_above() -> None:
    line: WaitingLine[str] = WaitingLine(RULES)
    offer(line, "warm", WARM, now_s=0.0)
    offer(line, "hot early", HOT, now_s=9.9)
    offer(line, "hot late", HOT, now_s=10.1)
    assert [line.next(11.0) for _ in range(3)] == ["hot early", "warm", "hot late"]


def test_a_line_is_full_by_count() -> None:
    line: WaitingLine[int] = WaitingLine(RULES)
    assert all(isinstance(offer(line, number, HOT), Place) for number in range(3))
    assert offer(line, 3, HOT) is Refusal.QUEUE_FULL
    assert isinstance(offer(line, 3, WARM), Place)  # each path has its own bounds
    line.next(0.0)
    assert isinstance(offer(line, 3, HOT), Place)


def test_a_line_is_full_by_tokens() -> None:
    line: WaitingLine[int] = WaitingLine(RULES)
    assert isinstance(offer(line, 0, HOT, tokens=600), Place)
    assert offer(line, 1, HOT, tokens=401) is Refusal.QUEUE_TOKENS_FULL
    assert isinstance(offer(line, 1, HOT, tokens=400), Place)


def test_a_request_longer_than_the_bound_may_wait_alone() -> None:
    line: WaitingLine[int] = WaitingLine(RULES)
    assert isinstance(offer(line, 0, HOT, tokens=5000), Place)
    assert offer(line, 1, HOT, tokens=1) is Refusal.QUEUE_TOKENS_FULL


def test_a_cancelled_place_is_given_up_once() -> None:
    line: WaitingLine[int] = WaitingLine(RULES)
    place = offer(line, 0, HOT)
    assert line.cancel(place)
    assert not line.cancel(place)
    assert line.next(0.0) is None


def test_who_is_past_the_deadline_does_not_start() -> None:
    line: WaitingLine[str] = WaitingLine(RULES)
    offer(line, "late", HOT, deadline_s=5.0)
    offer(line, "in time", COLD, deadline_s=50.0)
    assert line.next(5.0) == "in time"
    assert line.expire(5.0) == ["late"]
    assert len(line) == 0


@given(st.lists(st.tuples(st.sampled_from([HOT, WARM, COLD]), st.integers(0, 99)), min_size=1, max_size=60))
def test_whoever_is_accepted_starts_or_expires_by_the_deadline(arrivals: list[tuple[RequestPath, int]]) -> None:
    """One arrival per second, one start every other second: the line grows and still forgets nobody."""
    line: WaitingLine[int] = WaitingLine(RULES)
    accepted, served = set(), {}
    for second in range(len(arrivals) + 31):
        if second < len(arrivals):
            path, within = arrivals[second]
            place = offer(line, second, path, float(second), priority=path.priority(within), deadline_s=second + 30.0)
            if isinstance(place, Place):
                accepted.add(second)
        for late in line.expire(float(second)):
            served[late] = second
        started = line.next(float(second)) if second % 2 else None
        if started is not None:
            served[started] = second
    assert served.keys() == accepted
    assert all(when - arrived <= 30 for arrived, when in served.items())


def test_nobody_starves_behind_more_urgent_traffic_without_end() -> None:
    """Hot requests keep two waiting at all times; a warm one still starts soon after it is an ageing time old."""
    line: WaitingLine[tuple[str, float]] = WaitingLine(RULES)
    offer(line, ("warm", 0.0), WARM, 0.0)
    for tenth in range(1, 1000):
        now_s = tenth / 10
        offer(line, ("hot", now_s), HOT, now_s)
        started = line.next(now_s) if tenth > 2 else None
        if started is not None and started[0] == "warm":
            assert 10 <= now_s <= 11
            return
    raise AssertionError("the warm request never started")


class LineMachine(RuleBasedStateMachine):
    """The line against a plain list, with counts that must always agree."""

    def __init__(self) -> None:
        super().__init__()
        self.line: WaitingLine[int] = WaitingLine(RULES)
        self.model: list[Place[int]] = []
        self.now_s = 0.0
        self.offered = 0

    @rule(path=st.sampled_from([HOT, WARM, COLD]), tokens=st.integers(0, 600), wait_s=st.integers(1, 20))
    def offers(self, path: RequestPath, tokens: int, wait_s: int) -> None:
        self.offered += 1
        place = offer(self.line, self.offered, path, self.now_s, tokens=tokens, deadline_s=self.now_s + wait_s)
        mine = [other for other in self.model if other.path is path]
        full = len(mine) >= RULES.bounds(path).max_requests or (
            mine and sum(other.tokens for other in mine) + tokens > RULES.bounds(path).max_tokens
        )
        assert isinstance(place, Refusal) == bool(full)
        if isinstance(place, Place):
            self.model.append(place)

    @rule()
    def takes(self) -> None:
        waiting = sorted(place for place in self.model if place.deadline_s > self.now_s)
        assert self.line.next(self.now_s) == (waiting[0].item if waiting else None)
        if waiting:
            self.model.remove(waiting[0])

    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        if self.model:
            place = data.draw(st.sampled_from(self.model))
            assert self.line.cancel(place)
            self.model.remove(place)

    @rule(seconds=st.integers(0, 10))
    def passes(self, seconds: int) -> None:
        self.now_s += seconds
        late = {place.item for place in self.model if place.deadline_s <= self.now_s}
        assert set(self.line.expire(self.now_s)) == late
        self.model = [place for place in self.model if place.item not in late]

    @invariant()
    def holds_the_same(self) -> None:
        assert self.line.items() == [place.item for place in sorted(self.model)]


TestLine = LineMachine.TestCase
