"""What a stream consists of: every token once and in order, `[DONE]` once and last, usage only when asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, Ask, Reply, completion, open_session
from tests.integration.configs import MODEL
from tests.integration.stack import Stack


async def ask(stack: Stack, body: dict[str, Any], route: str = COMPLETIONS) -> Reply:
    async with open_session() as session:
        return await Ask(session, stack.url + route, body).task


@pytest.mark.parametrize("path", ["hot", "cold"])
async def test_a_stream_has_every_token_of_the_whole_answer_in_order(plumbing: Stack, path: str) -> None:
    fields: dict[str, Any] = {"path": path, "return_token_ids": True}
    whole = await ask(plumbing, completion(400, **fields))
    streamed = await ask(plumbing, completion(400, stream=True, **fields))
    assert streamed.complete
    tokens = [token for chunk in streamed.chunks for choice in chunk["choices"] for token in choice["token_ids"] or ()]
    assert len(tokens) == 400
    assert tokens == whole.json["choices"][0]["token_ids"]
    assert streamed.text == whole.text


async def test_tokens_leave_as_they_are_made(plumbing: Stack) -> None:
    """Of 400 tokens few may share an event: those that the engine made while the event before was being written."""
    streamed = await ask(plumbing, completion(400, stream=True))
    assert len(streamed.events) > 200


async def test_streams_side_by_side_do_not_mix(plumbing: Stack) -> None:
    prompts = [[100 + number, 7, 9] for number in range(16)]
    async with open_session() as session:
        url = plumbing.url + COMPLETIONS
        whole = [await Ask(session, url, completion(40, prompt=prompt)).task for prompt in prompts]
        running = [Ask(session, url, completion(40, prompt=prompt, stream=True)) for prompt in prompts]
        streamed = [await ask.task for ask in running]
    assert [reply.text for reply in streamed] == [reply.text for reply in whole]
    assert all(reply.complete for reply in streamed)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
async def test_a_stream_has_usage_only_when_asked(plumbing: Stack, route: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "hello"}]} if route == CHAT else {"prompt": "hello"}
    body = {"model": MODEL, "max_tokens": 5, "ignore_eos": True, "stream": True} | prompt
    silent = await ask(plumbing, body, route)
    assert not any(chunk.get("usage") for chunk in silent.chunks)
    told = await ask(plumbing, body | {"stream_options": {"include_usage": True}}, route)
    *before, last = told.chunks
    assert not any(chunk.get("usage") for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert told.complete


async def test_n_answers_come_in_one_stream_with_their_index(plumbing: Stack) -> None:
    streamed = await ask(plumbing, completion(10, stream=True, n=3, temperature=1, seed=4))
    ended = [choice["index"] for chunk in streamed.chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]
    assert streamed.complete
