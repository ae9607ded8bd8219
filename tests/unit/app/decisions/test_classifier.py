"""Which path a request takes, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import RoutingConfig
from app.decisions.classifier import classify
from app.requests import RequestFeatures, RequestPath

HOT, COLD = RequestPath.HOT, RequestPath.COLD
RULES = RoutingConfig(hot_max_output_tokens=512, hot_max_uncached_tokens=2048, assumed_output_tokens=256)
SAME_CONTEXT = {HOT: 8192, COLD: 8192}
SHORT_HOT_CONTEXT = {HOT: 1024, COLD: 8192}


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "path", "reason"),
    [
        (10, 10, HOT, "short_prompt_and_output"),
        (2048, 512, HOT, "short_prompt_and_output"),
        (2049, 512, COLD, "long_prompt"),
        (2048, 513, COLD, "long_output"),
        (5000, 3000, COLD, "long_output"),
        (10, None, HOT, "short_prompt_and_output"),
        (3000, None, COLD, "long_prompt"),
        (10, 0, HOT, "short_prompt_and_output"),
    ],
)
def test_hot_is_a_short_answer_and_a_short_prompt(
    prompt_tokens: int, max_output_tokens: int | None, path: RequestPath, reason: str
) -> None:
    decided = classify(RequestFeatures(prompt_tokens, max_output_tokens), RULES, SAME_CONTEXT)
    assert (decided.path, decided.reason) == (path, reason)


def test_a_missing_limit_counts_as_the_assumed_one() -> None:
    rules = RULES.model_copy(update={"assumed_output_tokens": 513})
    assert classify(RequestFeatures(10, None), rules, SAME_CONTEXT).reason == "long_output"


def test_cached_tokens_do_not_make_a_prompt_long() -> None:
    features = RequestFeatures(6000, 100, cached_tokens=5900)
    assert classify(features, RULES, SAME_CONTEXT).path is HOT


@pytest.mark.parametrize("path", [HOT, COLD])
@pytest.mark.parametrize(("prompt_tokens", "max_output_tokens"), [(10, 10), (5000, 2000)])
def test_a_forced_path_wins(path: RequestPath, prompt_tokens: int, max_output_tokens: int) -> None:
    features = RequestFeatures(prompt_tokens, max_output_tokens, forced_path=path)
    decided = classify(features, RULES, SAME_CONTEXT)
    assert (decided.path, decided.reason) == (path, "forced")


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "path", "reason"),
    [
        (1000, 24, HOT, "short_prompt_and_output"),
        (1000, 25, COLD, "context_of_path"),
        (1023, None, HOT, "short_prompt_and_output"),
        (1024, None, COLD, "context_of_path"),  # there must be room for one token
        (1024, 0, COLD, "context_of_path"),
    ],
)
def test_what_does_not_fit_the_hot_context_goes_cold(
    prompt_tokens: int, max_output_tokens: int | None, path: RequestPath, reason: str
) -> None:
    decided = classify(RequestFeatures(prompt_tokens, max_output_tokens), RULES, SHORT_HOT_CONTEXT)
    assert (decided.path, decided.reason) == (path, reason)


def test_what_does_not_fit_the_cold_context_goes_hot() -> None:
    decided = classify(RequestFeatures(3000, 2000), RULES, {HOT: 8192, COLD: 4096})
    assert (decided.path, decided.reason) == (HOT, "context_of_path")


def test_a_forced_path_stands_although_the_request_does_not_fit_it() -> None:
    """The client asked for that path's engine: its refusal is the answer."""
    decided = classify(RequestFeatures(5000, 100, forced_path=HOT), RULES, SHORT_HOT_CONTEXT)
    assert (decided.path, decided.reason) == (HOT, "forced")


@given(prompt=st.integers(1, 10_000), output=st.none() | st.integers(0, 10_000), cached=st.integers(0, 10_000))
def test_more_cached_tokens_never_make_a_request_cold(prompt: int, output: int | None, cached: int) -> None:
    uncached = classify(RequestFeatures(prompt, output), RULES, {HOT: 20_001, COLD: 20_001})
    known = RequestFeatures(prompt, output, cached_tokens=min(cached, prompt))
    if uncached.path is HOT:
        assert classify(known, RULES, {HOT: 20_001, COLD: 20_001}).path is HOT
