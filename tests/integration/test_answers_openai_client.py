"""What the official `openai` client does, it does here, on both paths."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.client import PATH_HEADER
from tests.integration.configs import KEYS, MODEL
from tests.integration.stack import Stack

FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class Caller:
    """A client whose every request takes one path, by the model's suffix or by the header."""

    def __init__(self, stack: Stack, path: str, by_suffix: bool) -> None:
        self.path = path
        self.model = f"{MODEL}:{path}" if by_suffix else MODEL
        headers = {} if by_suffix else {PATH_HEADER: path}
        self.openai = OpenAI(
            base_url=f"{stack.url}/v1", api_key=KEYS["owner"], default_headers=headers, timeout=300, max_retries=0
        )

    def chat(self, **options: Any) -> Any:
        request: Any = self.openai.chat.completions.create
        return request(**{"model": self.model, "messages": FRANCE, "temperature": 0, "max_tokens": 12} | options)

    def complete(self, **options: Any) -> Any:
        request: Any = self.openai.completions.create
        return request(
            **{"model": self.model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8} | options
        )

    def respond(self, **options: Any) -> Any:
        request: Any = self.openai.responses.create
        return request(
            **{"model": self.model, "input": "Say hello.", "temperature": 0, "max_output_tokens": 8} | options
        )


@pytest.fixture(params=[("hot", True), ("cold", False)], ids=["hot by suffix", "cold by header"])
def caller(request: pytest.FixtureRequest, answers: Stack) -> Caller:
    path, by_suffix = request.param
    return Caller(answers, path, by_suffix)


def test_the_request_takes_the_path_it_asks_for(caller: Caller) -> None:
    raw = caller.openai.chat.completions.with_raw_response.create(model=caller.model, messages=FRANCE, max_tokens=1)
    assert raw.headers[PATH_HEADER] == caller.path
    assert raw.headers["x-kvpulse-reason"] == "forced"


def test_a_chat_is_answered(caller: Caller) -> None:
    answer = caller.chat(max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.model == MODEL
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 40


def test_a_streamed_chat_says_the_same(caller: Caller) -> None:
    whole = caller.chat()
    chunks = list(caller.chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert ends[-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert not any(chunk.usage for chunk in chunks[:-1])


def test_a_stream_without_usage_has_none(caller: Caller) -> None:
    assert not any(chunk.usage for chunk in caller.chat(stream=True))


def test_a_completion_says_the_same_whole_and_streamed(caller: Caller) -> None:
    whole = caller.complete()
    assert whole.choices[0].text.strip().startswith("Paris")
    assert "".join(chunk.choices[0].text for chunk in caller.complete(stream=True)) == whole.choices[0].text


def test_a_response_says_the_same_whole_and_streamed(caller: Caller) -> None:
    whole = caller.respond()
    assert whole.output_text
    assert whole.usage.output_tokens <= 8
    events = list(caller.respond(stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    # vLLM calls an answer that its limit cut off completed while it streams, too.
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_is_called_with_arguments_of_its_schema(caller: Caller, choice: Any) -> None:
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = caller.chat(messages=question, tools=[WEATHER], tool_choice=choice, max_tokens=80)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_a_streamed_tool_call_is_complete(caller: Caller) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    chunks = caller.chat(messages=question, tools=[WEATHER], tool_choice=named, max_tokens=80, stream=True)
    parts = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert [part.function.name for part in parts if part.function.name] == ["get_weather"]
    assert set(json.loads("".join(part.function.arguments or "" for part in parts))) == {"city"}


def test_an_answer_keeps_to_its_json_schema(caller: Caller) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = caller.chat(
        messages=[{"role": "user", "content": "Describe Ann, 30, in JSON."}], response_format=wanted, max_tokens=80
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_log_probabilities_come_with_each_token(caller: Caller) -> None:
    answer = caller.chat(logprobs=True, top_logprobs=3, max_tokens=4)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    assert all(token.logprob <= 0 and len(token.top_logprobs) >= 3 for token in tokens)
    assert len(caller.complete(logprobs=2, max_tokens=4).choices[0].logprobs.token_logprobs) == 4


def test_two_answers_to_one_question(caller: Caller) -> None:
    answer = caller.chat(n=2, temperature=1, seed=3, max_tokens=6)
    assert sorted(choice.index for choice in answer.choices) == [0, 1]


def test_a_stop_string_ends_the_answer_before_it(caller: Caller) -> None:
    unstopped = caller.complete(max_tokens=20).choices[0].text
    word = unstopped.split()[2]
    answer = caller.complete(max_tokens=20, stop=[word]).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.text == unstopped[: unstopped.index(word)]


def test_max_completion_tokens_bounds_the_answer(caller: Caller) -> None:
    answer = caller.chat(max_tokens=openai.omit, max_completion_tokens=3)
    assert answer.usage.completion_tokens == 3
    assert answer.choices[0].finish_reason == "length"


def test_a_usage_tells_what_was_cached(caller: Caller) -> None:
    prompt = [{"role": "user", "content": f"Sum up, on the {caller.path} path: " + "the quick brown fox jumps. " * 20}]
    first = caller.chat(messages=prompt, max_tokens=1)
    second = caller.chat(messages=prompt, max_tokens=1)
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    assert second.usage.prompt_tokens == first.usage.prompt_tokens


def test_the_client_raises_its_own_errors(caller: Caller, answers: Stack) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
        caller.chat(model="gpt-9")
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as too_long:
        caller.chat(max_tokens=9000, stream=True)
    assert (too_long.value.param, too_long.value.code) == ("max_tokens", "context_length_exceeded")
    stranger = OpenAI(base_url=f"{answers.url}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as wrong_key:
        stranger.models.list()
    assert wrong_key.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        caller.openai.embeddings.create(model=MODEL, input="x")


def test_the_models_are_listed(caller: Caller) -> None:
    assert [model.id for model in caller.openai.models.list()] == [MODEL]
    assert caller.openai.models.retrieve(MODEL).id == MODEL
