"""Quotas let through what a key may send, settle what was really used, and never lose count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.keys import Quota
from app.requests import Refusal
from app.state.quotas import Quotas
from tests.fakes import FakeClock

PER_MINUTE = Quota(requests_per_minute=60)
TOKENS = Quota(tokens_per_minute=6000)


def test_a_minutes_worth_may_come_at_once_and_then_at_the_even_rate() -> None:
    clock = FakeClock()
    quotas = Quotas(clock)
    assert all(quotas.charge("ide", PER_MINUTE, 1).decision.admitted for _ in range(60))
    refused = quotas.charge("ide", PER_MINUTE, 1).decision
    assert (refused.reason, refused.retry_after_s) == (Refusal.REQUESTS_PER_MINUTE, pytest.approx(1.0))
    clock.advance(1.0)
    assert quotas.charge("ide", PER_MINUTE, 1).decision.admitted
    assert not quotas.charge("ide", PER_MINUTE, 1).decision.admitted


def test_one_key_does_not_spend_anothers_quota() -> None:
    quotas = Quotas(FakeClock())
    for _ in range(61):
        quotas.charge("ide", PER_MINUTE, 1)
    assert quotas.charge("batch", PER_MINUTE, 1).decision.admitted


def test_a_stream_that_ends_early_gives_back_what_it_did_not_use() -> None:
    quotas = Quotas(FakeClock())
    charge = quotas.charge("ide", TOKENS, 6000)
    assert quotas.charge("ide", TOKENS, 1000).decision.reason is Refusal.TOKENS_PER_MINUTE
    charge.settle(used_tokens=500)
    assert quotas.charge("ide", TOKENS, 5500).decision.admitted
    assert not quotas.charge("ide", TOKENS, 1).decision.admitted


def test_an_answer_longer_than_estimated_is_a_debt_that_delays_the_next() -> None:
    clock = FakeClock()
    quotas = Quotas(clock)
    quotas.charge("ide", TOKENS, 6000).settle(used_tokens=7000)
    assert quotas.charge("ide", TOKENS, 1).decision.retry_after_s == pytest.approx(10.01)
    clock.advance(10.01)
    assert quotas.charge("ide", TOKENS, 1).decision.admitted


def test_without_the_engines_word_the_estimate_stands() -> None:
    quotas = Quotas(FakeClock())
    quotas.charge("ide", TOKENS, 4000).settle(used_tokens=None)
    assert quotas.charge("ide", TOKENS, 2001).decision.reason is Refusal.TOKENS_PER_MINUTE


def test_a_request_above_the_whole_limit_passes_with_a_full_minute_and_leaves_a_debt() -> None:
    clock = FakeClock()
    quotas = Quotas(clock)
    huge = quotas.charge("ide", TOKENS, 1_000_000)
    assert huge.decision.admitted
    assert not quotas.charge("ide", TOKENS, 1).decision.admitted
    huge.settle(used_tokens=6100)
    clock.advance(2)
    assert quotas.charge("ide", TOKENS, 1).decision.admitted


def test_a_refund_costs_neither_a_request_nor_tokens() -> None:
    quotas = Quotas(FakeClock())
    quota = Quota(requests_per_minute=1, tokens_per_minute=100, concurrent_requests=1)
    quotas.charge("ide", quota, 100).refund()
    assert quotas.charge("ide", quota, 100).decision.admitted


def test_requests_at_once_are_bounded_and_a_slot_returns_once() -> None:
    quotas = Quotas(FakeClock())
    two = Quota(concurrent_requests=2)
    first = quotas.charge("ide", two, 1)
    quotas.charge("ide", two, 1)
    refused = quotas.charge("ide", two, 1)
    assert refused.decision.reason is Refusal.CONCURRENT_REQUESTS
    assert refused.decision.retry_after_s is not None
    refused.refund()  # holds nothing
    first.settle(1)
    first.settle(1)
    first.refund()
    assert quotas.running("ide") == 1
    assert quotas.charge("ide", two, 1).decision.admitted
    assert not quotas.charge("ide", two, 1).decision.admitted


def test_headers_tell_limit_rest_and_reset_of_both_rates() -> None:
    quotas = Quotas(FakeClock())
    decision = quotas.charge("ide", Quota(requests_per_minute=60, tokens_per_minute=6000), 1500).decision
    assert decision.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "4500",
        "x-ratelimit-reset-tokens": "15.000s",
    }


def test_a_key_without_limits_is_told_of_none() -> None:
    decision = Quotas(FakeClock()).charge("ide", Quota(), 10**9).decision
    assert decision.admitted
    assert decision.headers() == {}


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 4000), st.integers(0, 8000), st.booleans()), max_size=80))
def test_over_any_time_a_key_uses_no_more_than_its_rate_and_one_burst(
    steps: list[tuple[float, int, int, bool]],
) -> None:
    clock = FakeClock()
    quotas, used, open_charges, started_s = Quotas(clock), 0, [], clock()
    for pause_s, estimate, real, end_now in steps:
        clock.advance(pause_s)
        charge = quotas.charge("ide", TOKENS, estimate)
        if charge.decision.admitted:
            used += min(real, estimate)
            open_charges.append(charge)
            if end_now:
                charge.settle(min(real, estimate))
    for charge in open_charges:
        charge.settle(0)
        charge.settle(0)
    assert quotas.running("ide") == 0
    assert used <= 6000 + (clock() - started_s) * 100 + 1


@given(st.integers(1, 1000), st.integers(1, 20_000))
def test_who_waits_as_long_as_told_is_let_in(limit: int, tokens: int) -> None:
    clock = FakeClock()
    quotas, quota = Quotas(clock), Quota(requests_per_minute=limit, tokens_per_minute=limit * 10)
    while (decision := quotas.charge("ide", quota, tokens).decision).admitted:
        pass
    assert decision.retry_after_s is not None
    clock.advance(decision.retry_after_s)
    assert quotas.charge("ide", quota, tokens).decision.admitted
