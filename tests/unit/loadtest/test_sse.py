from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.sse import DONE, SseParser, decode_event, error_reason

STREAM = b': comment\n\ndata: {"choices":[]}\n\nevent: x\ndata: one\ndata: two\n\ndata:[DONE]\n\n'
EVENTS = [b'{"choices":[]}', b"one\ntwo", DONE]


def parsed(chunks: list[bytes]) -> list[bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@given(st.lists(st.integers(0, 2 * len(STREAM))), st.booleans())
def test_events_are_the_same_wherever_the_bytes_are_cut_and_whatever_ends_the_lines(
    cuts: list[int], crlf: bool
) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert parsed([stream[a:b] for a, b in pairwise(edges)]) == EVENTS


def test_an_event_without_its_end_is_not_told() -> None:
    assert parsed([b"data: one\n\ndata: two"]) == [b"one"]


@pytest.mark.parametrize(
    ("data", "carries"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"delta":{"content":""}}]}', True),  # half a character
        (b'{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}', False),
        (b'{"choices":[{"delta":{"reasoning_content":"a"}}]}', True),
        (b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}', True),
        (b'{"choices":[{"text":"a","finish_reason":"length"}]}', True),
        (b'{"choices":[{"text":"","finish_reason":"length"}]}', False),
        (b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}', False),
    ],
)
def test_a_chunk_carries_tokens_unless_it_only_opens_or_ends_the_answer(data: bytes, carries: bool) -> None:
    assert decode_event(data).carries_tokens is carries


def test_a_reason_is_the_status_and_the_servers_own_code() -> None:
    body = b'{"error":{"message":"m","type":"overloaded_error","code":"kv_cache_high"}}'
    assert error_reason(429, body) == "429 kv_cache_high"
    assert error_reason(503, b'{"error":{"message":"m","type":"server_error","code":null}}') == "503 server_error"
    assert error_reason(400, b'{"error":{"message":"m","code":400}}') == "400"
    assert error_reason(502, b"<html>bad gateway</html>") == "502"
    assert error_reason(404, b'{"detail":"Not Found"}') == "404"
