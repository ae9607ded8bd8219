"""The modelled engine keeps vLLM's rules, worked out by hand; its cache never loses or invents a block."""

from __future__ import annotations

import pytest

from app.state.pulse import CacheChange
from benchmarks.engine_model import BlockCache, EngineSpeed, SimulatedEngine, SimulatedRequest

SPEED = EngineSpeed(step_s=1.0, prefill_s_per_token=0.0, decode_s_per_context_token=0.0, max_num_batched_tokens=64)


def request(
    blocks: list[int], output_tokens: int = 1, rest_tokens: int = 1, arrived_s: float = 0.0
) -> SimulatedRequest:
    return SimulatedRequest(arrived_s, 32 * len(blocks) + rest_tokens, output_tokens, blocks)


def run(engine: SimulatedEngine) -> list[SimulatedRequest]:
    while engine.next_event_s is not None:
        engine.advance()
    finished, engine.finished = engine.finished, []
    return finished


def serve(engine: SimulatedEngine, asked: SimulatedRequest) -> SimulatedRequest:
    engine.submit(asked, 0.0)
    assert run(engine) == [asked]
    return asked


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    """129 tokens: 64, 64 and 1, so the first token comes at the end of the third step."""
    asked = serve(SimulatedEngine(100, SPEED), request([1, 2, 3, 4]))
    assert (asked.first_token_s, asked.cached_tokens) == (3.0, 0)


def test_what_was_computed_is_a_hit_but_never_the_last_token() -> None:
    engine = SimulatedEngine(100, SPEED)
    serve(engine, request([1, 2, 3, 4]))
    assert serve(engine, request([1, 2, 9], rest_tokens=0)).cached_tokens == 64
    assert serve(engine, request([1, 2], rest_tokens=0)).cached_tokens == 32


def test_the_tail_of_a_prompt_is_evicted_before_its_head() -> None:
    engine = SimulatedEngine(6, SPEED)
    serve(engine, request([1, 2, 3]))
    engine.cache.net_change()
    serve(engine, request([7, 8, 9]))  # takes four blocks, and three are blank
    assert engine.cache.net_change() == CacheChange(removed=(3,), stored=(7, 8, 9))


def test_blocks_in_use_are_not_evicted_and_the_request_waits() -> None:
    engine = SimulatedEngine(6, SPEED)
    long = request([1, 2, 3], output_tokens=20)
    short = request([7, 8, 9])
    engine.submit(long, 0.0)
    engine.submit(short, 0.5)
    assert run(engine) == [long, short]
    assert short.first_token_s > long.first_token_s + 18


def test_decoding_goes_on_while_prompts_are_computed_and_short_requests_end_first() -> None:
    engine = SimulatedEngine(100, SPEED)
    first = request([1], output_tokens=10)
    second = request([2, 3, 4, 5], output_tokens=2, arrived_s=2.5)
    engine.submit(first, 0.0)
    engine.advance()
    engine.submit(second, 2.5)  # the step under way ends at 3; 63 tokens fit into each step beside the decoding one
    assert run(engine) == [second, first]
    assert (first.first_token_s, second.first_token_s) == (1.0, 6.0)


def test_the_report_counts_what_is_still_to_compute() -> None:
    engine = SimulatedEngine(100, SPEED)
    serve(engine, request([1, 2]))
    engine.submit(request([1, 2, 3, 4]), 0.0)
    engine.submit(request([1, 2, 8], output_tokens=5), 0.0)
    load = engine.load()
    assert (load.running_requests, load.waiting_requests, load.queued_prefill_tokens) == (1, 1, 65 + 33)
    run(engine)
    assert engine.load().queued_prefill_tokens == 0
    assert engine.load().decode_tokens == 0
    assert engine.load().kv_usage_ratio == pytest.approx(0)


def test_shared_blocks_stay_while_anyone_uses_them() -> None:
    cache = BlockCache(4)
    cache.take(1)
    cache.name(1)
    cache.hold([1])
    cache.give_back([1], 0)
    assert cache.available == 3
    cache.give_back([1], 0)
    assert cache.available == 4
    assert cache.prefix_blocks([1, 2], 2) == 1
