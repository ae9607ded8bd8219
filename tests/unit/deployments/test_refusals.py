"""Every refusal has a sentence, a status, and its reason as the code."""

from __future__ import annotations

import pytest

from app.requests import Refusal, RequestPath
from deployments.refusals import no_room_in_time, refusal_error

UNAVAILABLE = {Refusal.ENGINES_FAILED, Refusal.ABORTED_FOR_CAPACITY}


@pytest.mark.parametrize("reason", Refusal)
def test_a_refusal_says_why_and_when_to_return(reason: Refusal) -> None:
    error = refusal_error(reason, RequestPath.COLD, retry_after_s=2.5)
    assert error.status == (503 if reason in UNAVAILABLE else 429)
    assert error.body()["error"]["code"] == reason.value
    assert "{" not in error.message
    assert error.headers() == {"retry-after": "3"}


def test_the_clients_own_deadline_is_a_timeout() -> None:
    error = no_room_in_time()
    assert (error.status, error.code) == (408, "deadline_passed")
