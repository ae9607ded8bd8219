from __future__ import annotations

import json
import random
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest

from loadtest.content import code_lines, diff_lines, one_token_words, prose_lines, text_of
from loadtest.records import TrafficClass
from loadtest.workloads import DEFAULT_PROFILES, LengthDistribution, Session, WorkloadConfig

MIXED = tuple(DEFAULT_PROFILES)
ROOMY = WorkloadConfig(model="m", context_tokens=1_000_000)
ARTICLE_MEANS = {  # docs/articles.md: prompt, answer
    TrafficClass.CHAT: (128, 256),
    TrafficClass.SUMMARY: (4217, 1893),
    TrafficClass.REVIEW: (3152, 3021),
    TrafficClass.IDE: (892, 127),
}


def body_of(session: Session, turn: int) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(session.request(turn).body)
    return body


@pytest.mark.parametrize(("expected", "spread"), [(128, 0.25), (892, 0.5), (4217, 1.0)])
def test_drawn_lengths_have_the_mean_and_the_spread_they_are_asked_for(expected: int, spread: float) -> None:
    rng = random.Random(1)
    lengths = [LengthDistribution(expected, spread).draw(rng) for _ in range(20_000)]
    assert mean(lengths) == pytest.approx(expected, rel=0.03)
    deviation = mean((length - expected) ** 2 for length in lengths) ** 0.5
    assert deviation / expected == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize("traffic_class", MIXED)
def test_over_their_turns_sessions_have_the_means_of_the_articles(traffic_class: TrafficClass) -> None:
    turns = ROOMY.profiles[traffic_class].turns
    sessions = [Session(ROOMY, traffic_class, str(number)) for number in range(1500)]
    lengths = [session.lengths(turn) for session in sessions for turn in range(turns)]
    prompt, output = ARTICLE_MEANS[traffic_class]
    assert mean(length.prompt for length in lengths) == pytest.approx(prompt, rel=0.08)
    assert mean(length.output for length in lengths) == pytest.approx(output, rel=0.08)
    assert not any(length.cut for length in lengths)


@pytest.mark.parametrize("context_tokens", [512, 2048, 8192])
@pytest.mark.parametrize("traffic_class", MIXED)
def test_a_request_always_fits_the_context_and_what_did_not_fit_is_told(
    traffic_class: TrafficClass, context_tokens: int
) -> None:
    workload = WorkloadConfig(model="m", context_tokens=context_tokens)
    turns = workload.profiles[traffic_class].turns
    sessions = [Session(workload, traffic_class, str(number)) for number in range(200)]
    lengths = [session.lengths(turn) for session in sessions for turn in range(turns)]
    assert max(length.prompt + length.output for length in lengths) <= workload.room_tokens
    assert min(min(length.prompt, length.output) for length in lengths) >= 1
    unlimited = workload.scale_of(traffic_class) * ROOMY.profiles[traffic_class].prompt.mean
    assert any(length.cut for length in lengths) or unlimited < context_tokens / 4


def test_the_estimate_of_a_texts_tokens_is_kept() -> None:
    for lines, ratio in ((code_lines, 0.28), (prose_lines, 0.22), (diff_lines, 0.32)):
        assert len(text_of(lines, "seed", 1000, ratio)) * ratio == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("traffic_class", MIXED)
def test_the_same_seed_makes_the_same_bytes_and_another_seed_others(traffic_class: TrafficClass) -> None:
    def bodies(seed: int) -> list[bytes]:
        session = Session(WorkloadConfig(model="m", context_tokens=4096, seed=seed), traffic_class, "a")
        return [session.request(turn).body for turn in range(3)]

    assert bodies(1) == bodies(1)
    assert not set(bodies(1)) & set(bodies(2))


def test_ide_files_grow_and_keep_most_of_their_start() -> None:
    for number in range(20):
        session = Session(WorkloadConfig(model="m", context_tokens=4096), TrafficClass.IDE, str(number))
        prompts = [
            body_of(session, turn)["prompt"] for turn in range(session.workload.profiles[TrafficClass.IDE].turns)
        ]
        for before, after in pairwise(prompts):
            shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
            assert len(after) > len(before)
            assert shared >= 0.5 * len(before)


def test_some_ide_turns_edit_above_the_cursor() -> None:
    session = Session(WorkloadConfig(model="m", context_tokens=4096), TrafficClass.IDE, "a")
    first, last = body_of(session, 0)["prompt"], body_of(session, 9)["prompt"]
    assert not last.startswith(first)


def test_a_review_never_rewrites_its_history() -> None:
    session = Session(WorkloadConfig(model="m", context_tokens=4096), TrafficClass.REVIEW, "a")
    histories = [body_of(session, turn)["messages"] for turn in range(4)]
    for before, after in pairwise(histories):
        assert after[: len(before)] == before
        assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]


def test_a_document_is_the_same_in_every_question_about_it() -> None:
    session = Session(WorkloadConfig(model="m", context_tokens=4096), TrafficClass.SUMMARY, "a")
    texts = [body_of(session, turn)["messages"][1]["content"] for turn in range(3)]
    documents = {text.rpartition("\n\n")[0] for text in texts}
    assert len(documents) == 1
    assert len(set(texts)) == 3


def test_requests_are_streamed_with_usage_and_exact_answers_on_request_only() -> None:
    exact = Session(WorkloadConfig(model="m", context_tokens=4096), TrafficClass.CHAT, "a")
    natural = Session(WorkloadConfig(model="m", context_tokens=4096, exact_outputs=False), TrafficClass.CHAT, "a")
    body = body_of(exact, 0)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert body["max_tokens"] == exact.lengths(0).output
    assert body["ignore_eos"] is True
    assert "ignore_eos" not in body_of(natural, 0)


def test_words_of_one_token_start_alike_for_one_seed() -> None:
    long, short = one_token_words("a", 512), one_token_words("a", 100)
    assert long.startswith(short + " ")
    assert len(long.split()) == 512
    assert one_token_words("b", 512) != long
