from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.records import PlannedRequest
from loadtest.replay import BLOCK_TOKENS, Replay, Slice, TraceRequest, plan_replay, prompt_of, read_trace

MOONCAKE = """\
{"timestamp": 1000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1600, "output_length": 0, "hash_ids": [0, 1, 7, 8]}
{"timestamp": 5000, "input_length": 90000, "output_length": 5, "hash_ids": [0]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.4799600,110,27
"""


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    return path


def plan(requests: list[TraceRequest], part: Slice = Slice(), context_tokens: int = 8192) -> Replay:  # noqa: B008 - a frozen value
    return plan_replay(requests, part, "m", context_tokens, seed=0, exact_outputs=True)


def words_of(planned: PlannedRequest) -> list[str]:
    words: list[str] = json.loads(planned.body)["prompt"].split()
    return words


def test_a_mooncake_trace_starts_at_zero_and_answers_have_a_token(mooncake: Path) -> None:
    first, second, _ = read_trace(mooncake)
    assert first == TraceRequest(0.0, 1100, 50, (0, 1, 2))
    assert (second.at_s, second.output_tokens) == (2.0, 1)


def test_an_azure_trace_has_arrivals_and_lengths_and_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    assert list(read_trace(path)) == [TraceRequest(0.0, 4808, 10), TraceRequest(0.5, 110, 27)]


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", '{"timestamp": 1}\n'), ("a.csv", AZURE + "yesterday,1,2\n")])
def test_a_broken_line_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=r"line \d"):
        list(read_trace(path))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Mooncake"):
        list(read_trace(tmp_path / "trace.parquet"))


def test_equal_block_hashes_are_equal_tokens_and_the_prompt_has_its_length(mooncake: Path) -> None:
    replay = plan(list(read_trace(mooncake)))
    first, second = (words_of(planned) for planned in replay.schedule)
    assert (len(first), len(second)) == (1100, 1600)
    assert first[: 2 * BLOCK_TOKENS] == second[: 2 * BLOCK_TOKENS]
    assert first[2 * BLOCK_TOKENS :] != second[2 * BLOCK_TOKENS : 1100]


def test_a_partial_block_is_the_start_of_the_whole_one() -> None:
    whole = prompt_of(TraceRequest(0.0, 512, 1, (5,)), 0, seed=0)
    partial = prompt_of(TraceRequest(0.0, 100, 1, (5,)), 1, seed=0)
    assert whole.split()[:100] == partial.split()


def test_requests_without_hashes_share_nothing() -> None:
    first, second = plan([TraceRequest(0.0, 600, 5), TraceRequest(1.0, 600, 5)]).schedule
    assert words_of(first)[:20] != words_of(second)[:20]


def test_what_exceeds_the_context_is_left_out_and_counted(mooncake: Path) -> None:
    replay = plan(list(read_trace(mooncake)))
    assert (len(replay.schedule), replay.left_out) == (2, 1)
    assert plan([TraceRequest(0.0, 900, 100)], context_tokens=1008).left_out == 0
    assert plan([TraceRequest(0.0, 901, 100)], context_tokens=1008).left_out == 1


def test_the_share_of_repeated_prefixes_and_first_touches_are_told(mooncake: Path) -> None:
    replay = plan(list(read_trace(mooncake)))
    assert replay.shareable_ratio == pytest.approx(1024 / 2700)
    assert [planned.first_touch for planned in replay.schedule] == [True, False]


def test_a_slice_starts_at_zero_runs_at_its_speed_and_ends() -> None:
    trace = [TraceRequest(float(second), 10, 1) for second in range(100)]
    replay = plan(trace, Slice(start_s=10.0, end_s=20.0, speed=2.0))
    assert [planned.at_s for planned in replay.schedule] == [second / 2 for second in range(10)]
    assert len(plan(trace, Slice(max_requests=3)).schedule) == 3
