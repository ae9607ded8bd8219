"""Which path a request takes, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import RoutingConfig
from app.decisions.classifier import Classification, classify, engine_priority
from app.requests import RequestFeatures, RequestPath
from app.state.sessions import Session

HOT, WARM, COLD = RequestPath.HOT, RequestPath.WARM, RequestPath.COLD
RULES = RoutingConfig(
    hot_max_output_tokens=512, hot_max_uncached_tokens=2048, assumed_output_tokens=256, warm_min_prefix_tokens=256
)
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


@pytest.mark.parametrize(
    ("prompt_tokens", "max_output_tokens", "heavy_prefix_tokens", "path", "reason"),
    [
        (3000, 2000, 2000, WARM, "heavy_prefix"),
        (3000, 100, 2000, WARM, "heavy_prefix"),  # too long a prompt for hot
        (1000, 100, 900, HOT, "short_prompt_and_output"),  # hot comes first
        (3000, 2000, 255, COLD, "long_output"),  # a template shared by everyone is no prefix
        (30_000, 2000, 2000, COLD, "long_output"),  # what remains would stall hot
        (4048, 2000, 2000, WARM, "heavy_prefix"),
        (4049, 2000, 2000, COLD, "long_output"),
    ],
)
def test_warm_is_a_frequent_prefix_with_little_behind_it(
    prompt_tokens: int, max_output_tokens: int, heavy_prefix_tokens: int, path: RequestPath, reason: str
) -> None:
    features = RequestFeatures(prompt_tokens, max_output_tokens, heavy_prefix_tokens=heavy_prefix_tokens)
    decided = classify(features, RULES, {HOT: 40_000, COLD: 40_000})
    assert (decided.path, decided.reason) == (path, reason)


def test_what_is_warm_and_does_not_fit_the_hot_engines_goes_cold() -> None:
    features = RequestFeatures(3000, 2000, heavy_prefix_tokens=2000)
    decided = classify(features, RULES, SHORT_HOT_CONTEXT)
    assert (decided.path, decided.reason) == (COLD, "context_of_path")


@pytest.mark.parametrize("session", [Session(WARM, 142), Session(COLD, 242), Session(HOT, 42)])
def test_a_session_passes_on_its_path_and_priority(session: Session) -> None:
    decided = classify(RequestFeatures(100, 100), RULES, SAME_CONTEXT, session)
    assert (decided.path, decided.reason, decided.priority) == (session.path, "session", session.priority)


@pytest.mark.parametrize(
    ("path", "prompt_tokens", "max_output_tokens", "reason"),
    [
        (HOT, 100, 100_000, "long_output"),
        (HOT, 5000, 100, "long_prompt"),
        (WARM, 5000, 100, "long_prompt"),
    ],
)
def test_a_session_label_opens_no_way_around_the_bounds_of_hot(
    path: RequestPath, prompt_tokens: int, max_output_tokens: int, reason: str
) -> None:
    features = RequestFeatures(prompt_tokens, max_output_tokens)
    decided = classify(features, RULES, {HOT: 200_000, COLD: 200_000}, Session(path, path.priority()))
    assert (decided.path, decided.reason, decided.priority) == (COLD, reason, COLD.priority())


def test_a_session_stays_warm_for_long_answers() -> None:
    decided = classify(RequestFeatures(100, 4000), RULES, SAME_CONTEXT, Session(WARM, WARM.priority()))
    assert (decided.path, decided.reason) == (WARM, "session")


def test_a_forced_path_wins_over_a_session() -> None:
    decided = classify(RequestFeatures(10, 10, forced_path=COLD), RULES, SAME_CONTEXT, Session(HOT, 50))
    assert (decided.path, decided.reason) == (COLD, "forced")


@given(
    prompt=st.integers(1, 10_000),
    output=st.none() | st.integers(0, 1_000_000),
    heavy=st.integers(0, 10_000),
    session=st.none() | st.sampled_from([HOT, WARM, COLD]),
    key_priority=st.integers(0, 99),
)
def test_without_permission_hot_is_within_its_bounds_whatever_a_client_sends(
    prompt: int, output: int | None, heavy: int, session: RequestPath | None, key_priority: int
) -> None:
    features = RequestFeatures(prompt, output, heavy_prefix_tokens=min(heavy, prompt), key_priority=key_priority)
    inherited = None if session is None else Session(session, session.priority(key_priority))
    decided = classify(features, RULES, {HOT: 2_000_000, COLD: 2_000_000}, inherited)
    if decided.path is HOT:
        assert prompt <= RULES.hot_max_uncached_tokens
        assert (256 if output is None else output) <= RULES.hot_max_output_tokens
    assert decided.priority == decided.path.priority(key_priority)


def within_band(path: RequestPath, uncached_tokens: int, key_priority: int = 50) -> int:
    """vLLM's priority, from the beginning of the path's band on."""
    features = RequestFeatures(uncached_tokens + 3000, 10, cached_tokens=3000, key_priority=key_priority)
    return engine_priority(Classification(path, "", path.priority(key_priority)), features) - path.priority(0)


@pytest.mark.parametrize("path", [HOT, WARM, COLD])
def test_of_one_paths_requests_the_one_with_least_to_compute_goes_first(path: RequestPath) -> None:
    assert within_band(path, 100) == 50 < within_band(path, 1000) < within_band(path, 2048)


@given(st.sampled_from(RequestPath), st.integers(0, 1_000_000), st.integers(0, 1_000_000), st.integers(0, 89))
def test_what_is_to_be_computed_outweighs_no_ten_points_of_a_key(
    path: RequestPath, little: int, much: int, key_priority: int
) -> None:
    assert within_band(path, much, key_priority) <= within_band(path, little, key_priority + 10)


@given(st.sampled_from(RequestPath), st.integers(0, 1_000_000), st.integers(0, 99))
def test_nothing_leaves_its_band(path: RequestPath, uncached_tokens: int, key_priority: int) -> None:
    assert 0 <= within_band(path, uncached_tokens, key_priority) <= 99
