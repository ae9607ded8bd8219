"""vLLM's table of requests keeps what it would drop and tells the answer that a sequence is for."""

from __future__ import annotations

from types import SimpleNamespace

from deployments.answer_usage import measured_usage
from tests.fake_output_processor import FakeOutputProcessor


def test_a_sequence_keeps_its_salt_and_is_noted_for_its_answer() -> None:
    processor = FakeOutputProcessor()
    request = SimpleNamespace(request_id="a", prompt_len=10, counted=True, cache_salt="ours")
    with measured_usage() as usage:
        processor.add_request(request, None)
    assert processor.request_states["a"].cache_salt == "ours"
    assert usage.tokens == 10
