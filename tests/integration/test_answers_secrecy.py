"""Prompts, answers and keys are in no log, whatever goes wrong with a request."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.client import CHAT, COMPLETIONS, RESPONSES
from tests.integration.configs import KEYS, MODEL
from tests.integration.stack import Stack

MARKER = "xylophone-9d41c7"
WRONG_KEY = "sk-wrong-77b1e0"


def test_no_log_has_a_prompt_or_a_key(answers: Stack) -> None:
    said = [{"role": "user", "content": f"The secret is {MARKER}."}]
    requests: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": said, "max_tokens": 2}),
        (CHAT, {"messages": said, "max_tokens": 2, "stream": True}),
        (COMPLETIONS, {"prompt": MARKER, "max_tokens": 2, "echo": True}),
        (RESPONSES, {"input": MARKER, "max_output_tokens": 16}),
        (CHAT, {"messages": said, "max_tokens": MARKER}),
        (CHAT, {"messages": said, "temperature": MARKER}),
        (CHAT, {"messages": [{"role": MARKER, "content": 5}]}),
        (CHAT, {"messages": said, "max_tokens": 9000}),
        (COMPLETIONS, {"prompt": f"{MARKER} " * 4000}),
        (CHAT, {"messages": said, "response_format": {"type": "json_schema", "json_schema": {"name": MARKER}}}),
        ("/tokenize", {"prompt": MARKER}),
    ]
    for route, fields in requests:
        for key in (KEYS["owner"], WRONG_KEY):
            headers = {"authorization": f"Bearer {key}", "x-marker": MARKER}
            httpx.post(answers.url + route, json={"model": MODEL} | fields, headers=headers, timeout=300)
    httpx.post(
        answers.url + CHAT,
        content=f'{{"messages": "{MARKER}'.encode(),
        headers={"authorization": f"Bearer {KEYS['owner']}"},
        timeout=60,
    )
    httpx.get(f"{answers.url}/v1/models", headers={"authorization": f"Bearer {WRONG_KEY}"}, timeout=60)

    logs = [path for path in answers.log_files() if path.exists()]
    assert len(logs) > 10, "Ray's logs have moved"
    for path in logs:
        text = path.read_text(errors="replace")
        for secret in (MARKER, WRONG_KEY, *KEYS.values()):
            assert secret not in text, f"{path.name} has {secret}: {_around(text, secret)}"


def _around(text: str, secret: str) -> str:
    place = text.index(secret)
    return text[max(0, place - 300) : place + 100]
