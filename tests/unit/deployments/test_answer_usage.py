"""What an answer cost its engine, counted where the engine keeps its requests."""

from __future__ import annotations

import asyncio

from deployments.answer_usage import AnswerUsage, measured_usage
from tests.fake_output_processor import FakeOutputProcessor


def test_an_answer_costs_its_prompts_once_and_all_that_was_generated() -> None:
    processor = FakeOutputProcessor()
    with measured_usage() as usage:
        processor.ask("a").stats.num_generation_tokens = 3
        for child in ("0_b", "1_b"):
            processor.ask(child, prompt_len=20, parent="b").stats.num_generation_tokens = 5
    assert usage.tokens == 10 + 3 + 20 + 5 + 5


def test_an_answer_that_breaks_off_is_counted_as_far_as_it_came() -> None:
    processor = FakeOutputProcessor()
    with measured_usage() as usage:
        sequence = processor.ask("a")
        sequence.stats.num_generation_tokens = 2
        del processor.request_states["a"]  # as an abort does
    assert usage.tokens == 12


def test_an_answer_that_asked_the_engine_for_nothing_costs_nothing() -> None:
    assert AnswerUsage().tokens == 0


def test_an_engine_without_statistics_does_not_tell() -> None:
    processor = FakeOutputProcessor()
    with measured_usage() as usage:
        processor.ask("a", counted=False)
    assert usage.tokens is None


async def test_answers_at_the_same_time_are_counted_apart_also_in_tasks_that_they_start() -> None:
    processor = FakeOutputProcessor()

    async def generate(name: str, tokens: int) -> None:
        sequence = processor.ask(name)
        await asyncio.sleep(0)
        sequence.stats.num_generation_tokens = tokens

    async def answer(name: str, tokens: int) -> int | None:
        with measured_usage() as usage:
            await asyncio.create_task(generate(name, tokens))
        return usage.tokens

    assert await asyncio.gather(answer("a", 1), answer("b", 2)) == [11, 12]


def test_what_belongs_to_no_answer_is_not_counted() -> None:
    processor = FakeOutputProcessor()
    with measured_usage() as usage:
        pass
    processor.ask("warm-up")
    assert usage.tokens == 0
