"""What is asked of a new replica, and what becomes of the answers."""

from __future__ import annotations

import json

import pytest

from loadtest.newcomer import NewcomerPlan, phase_of, request_of
from loadtest.probe import ProbeError
from loadtest.records import Outcome, RequestRecord, TrafficClass

PLAN = NewcomerPlan.model_validate(
    {
        "stacks": [{"name": "s", "command": ["x"], "url": "http://127.0.0.1:1"}],
        "replica": "HotEngine",
        "prefixes": 2,
        "prefix_tokens": 10,
        "own_tokens": 3,
    }
)


def record(number: int, ttft_s: float | None, cached: int = 0, outcome: Outcome = Outcome.OK) -> RequestRecord:
    key, traffic = str(number), TrafficClass.TRACE
    return RequestRecord(key, traffic, 0.0, outcome=outcome, ttft_s=ttft_s, prompt_tokens=100, cached_tokens=cached)


def test_every_other_request_has_the_same_prefix_and_no_two_are_the_same() -> None:
    prompts = [json.loads(request_of(PLAN, "m", number).body)["prompt"].split() for number in range(4)]
    assert prompts[0][:10] == prompts[2][:10] != prompts[1][:10] == prompts[3][:10]
    assert len({tuple(prompt) for prompt in prompts}) == 4


def test_the_first_answer_of_each_prefix_is_told_apart() -> None:
    phase = phase_of("p", PLAN, [record(5, 2.0), record(6, 3.0), record(7, 0.1, 90), record(8, 0.2, 90)])
    assert phase.first_s == (3.0, 2.0)
    assert (phase.requests, phase.cached_ratio) == (4, 0.45)


def test_a_phase_without_an_answer_measures_nothing() -> None:
    with pytest.raises(ProbeError, match="no request"):
        phase_of("p", PLAN, [record(1, None, outcome=Outcome.FAILED)])
