"""The same greedy request through KVPulse and through vLLM's own server gives the same answer and the same usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.bare_vllm import BareVllm
from tests.integration.client import CHAT, COMPLETIONS, RESPONSES
from tests.integration.configs import KEYS, MODEL
from tests.integration.stack import Stack

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
        "strict": True,
    },
}
CONVERSATION = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Who wrote Hamlet?"},
    {"role": "assistant", "content": "William Shakespeare wrote Hamlet."},
    {"role": "user", "content": "And Faust?"},
]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "What is gravity?"}]}),
    "many turns": (CHAT, {"messages": CONVERSATION}),
    "content parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}]}),
    "a tool": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "What is 2 + 3?"}],
            "tools": [TOOL],
            "tool_choice": "required",
            "max_tokens": 60,
        },
    ),
    "unicode": (CHAT, {"messages": [{"role": "user", "content": "Übersetze: naïve 東京 🚀 مرحبا"}]}),
    "log probabilities": (
        CHAT,
        {"messages": [{"role": "user", "content": "Count to ten."}], "logprobs": True, "top_logprobs": 2},
    ),
    "an answer that is continued": (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "Name a sea."},
                {"role": "assistant", "content": "The sea I name is"},
            ],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    "completion": (COMPLETIONS, {"prompt": "def fibonacci(n):"}),
    "completion without a limit": (COMPLETIONS, {"prompt": "Roses are red,", "max_tokens": None}),
    "echo": (COMPLETIONS, {"prompt": "The sun is", "echo": True}),
    "echo with log probabilities": (COMPLETIONS, {"prompt": "The moon is", "echo": True, "logprobs": 1}),
    "several prompts": (COMPLETIONS, {"prompt": ["One, two,", "Monday, Tuesday,", "a b c"]}),
    "token ids": (COMPLETIONS, {"prompt": [504, 3575, 282, 4649, 314]}),
    "several prompts as token ids": (COMPLETIONS, {"prompt": [[504, 3575, 282], [1, 2, 504]]}),
    "stop string": (COMPLETIONS, {"prompt": "1, 2, 3, 4,", "stop": ["7"], "include_stop_str_in_output": True}),
    "response": (RESPONSES, {"input": "Name a fruit."}),
    "response to a conversation": (RESPONSES, {"input": CONVERSATION[1:], "instructions": "Be brief."}),
}


@pytest.fixture(scope="module")
def bare(answers: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareVllm]:
    config = answers.config["applications"][0]["args"]
    vllm = BareVllm(config, "hot", tmp_path_factory.mktemp("bare") / "vllm.log")
    vllm.start()
    try:
        vllm.wait_until_ready()
        yield vllm
    finally:
        vllm.stop()


@pytest.mark.parametrize("case", REQUESTS)
def test_the_answer_is_that_of_vllm(answers: Stack, bare: BareVllm, case: str) -> None:
    route, fields = REQUESTS[case]
    limit = "max_output_tokens" if route == RESPONSES else "max_tokens"
    body = {"model": MODEL, "temperature": 0, limit: 16} | fields
    body = {name: value for name, value in body.items() if value is not None}
    headers = {"authorization": f"Bearer {KEYS['owner']}"}
    ours = httpx.post(answers.url + route, json=body, headers=headers, timeout=300)
    theirs = httpx.post(bare.url + route, json=body, timeout=300)
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text
    assert told(ours.json()) == told(theirs.json())


def told(value: Any) -> Any:
    """An answer without what differs between two runs: identifiers, times, and what was cached."""
    if isinstance(value, list):
        return [told(item) for item in value]
    if isinstance(value, dict):
        return {name: told(item) for name, item in value.items() if name not in _OF_ONE_RUN}
    return value


_OF_ONE_RUN = (
    "id",
    "created",
    "created_at",
    "completed_at",
    "prompt_tokens_details",
    "input_tokens_details",
    "call_id",
)
