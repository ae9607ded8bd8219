"""Records and servers that the load-test tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loadtest.records import Outcome, RequestRecord, TrafficClass

RecordMaker = Callable[..., RequestRecord]


@pytest.fixture
def make_record() -> RecordMaker:
    """An answered IDE request of 100 ms to the first token; arguments replace its fields."""
    answered = RequestRecord(
        key="ide/0",
        traffic_class=TrafficClass.IDE,
        at_s=0.0,
        outcome=Outcome.OK,
        status=200,
        ttft_s=0.1,
        e2e_s=0.3,
        itl_s=[0.1, 0.1],
        prompt_tokens=100,
        output_tokens=3,
        cached_tokens=40,
    )

    def make(**changes: Any) -> RequestRecord:
        return replace(answered, **{"itl_s": list(answered.itl_s), **changes})

    return make
