"""What the admission part of the configuration refuses, and that its defaults do not surprise."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.config.admission import AdmissionConfig, QueuesConfig
from app.requests import RequestPath

MARKS = {"alert": 0.85, "refuse_long": 0.9, "compress": 0.95, "leave_below": 0.05}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"watermarks": {"kv_usage_ratio": MARKS | {"refuse_long": 0.85}}}, "must rise"),
        ({"watermarks": {"kv_usage_ratio": MARKS | {"compress": 0.89}}}, "must rise"),
        ({"watermarks": {"kv_usage_ratio": MARKS | {"leave_below": 0.85}}}, "must be under alert"),
        ({"watermarks": {"kv_usage_ratio": MARKS | {"compress": 1.05}}}, "above 1, the whole cache"),
        ({"queues": {"crowded_at": 4, "crowded_until": 4}}, "must be under crowded_at"),
        ({"borrowing": {"hot_on_cold": 1.1}}, "less than or equal to 1"),
        ({"watermark": {}}, "Extra inputs"),
        ({"breaker": {"failures": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        AdmissionConfig.model_validate(given)


def test_by_default_cold_work_stays_off_the_hot_engines() -> None:
    assert AdmissionConfig().borrowing.share(RequestPath.COLD) == 0


def test_each_path_has_bounds_and_a_share_of_its_own() -> None:
    rules = AdmissionConfig()
    assert [rules.queues.bounds(path) for path in RequestPath] == [
        rules.queues.hot,
        rules.queues.warm,
        rules.queues.cold,
    ]
    assert [rules.borrowing.share(path) for path in RequestPath] == [0.25, 0.5, 0.0]


def test_hot_requests_wait_less_by_default_and_each_path_as_the_file_says() -> None:
    def waits_s(**queues: Any) -> list[float]:
        rules = QueuesConfig.model_validate(queues)
        return [rules.longest_wait_s(path) for path in RequestPath]

    assert waits_s() == [10, 60, 60]
    assert waits_s(deadline_s=90, cold={"deadline_s": 300}) == [10, 90, 300]
    assert waits_s(hot={"deadline_s": None}) == [60, 60, 60]


def test_a_file_may_name_one_bound_of_a_path_and_leave_the_others() -> None:
    queues = QueuesConfig.model_validate({"cold": {"max_requests": 7}})
    assert (queues.cold.max_requests, queues.cold.max_tokens) == (7, QueuesConfig().cold.max_tokens)
