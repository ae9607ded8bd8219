"""What a stack says of its routing, asked the way a client asks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import httpx

from tests.integration.client import COMPLETIONS
from tests.integration.configs import MODEL
from tests.integration.stack import Stack

EXPLAIN = "/v1/explain"
BLOCK_TOKENS = 32


def token_ids(rng: random.Random, count: int) -> list[int]:
    """No special token among them."""
    return [rng.randrange(100, 40_000) for _ in range(count)]


def body(prompt: list[int], max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields


def reusable(prompt: list[int], block_tokens: int = BLOCK_TOKENS) -> int:
    """Tokens of a prompt that an engine which has seen it need not compute: full blocks, never the last token."""
    return (len(prompt) - 1) // block_tokens * block_tokens


@dataclass(frozen=True)
class Outcome:
    """What was predicted of a request, and what its engine said of it afterwards."""

    replica: str
    reason: str
    matched_tokens: int
    cached_tokens: int


def ask(client: httpx.Client, request: dict[str, Any]) -> Outcome:
    response = client.post(COMPLETIONS, json=request)
    assert response.status_code == 200, response.text
    return outcome(response.headers, response.json())


def outcome(headers: Any, answer: Any) -> Outcome:
    return Outcome(
        headers["x-kvpulse-replica"],
        headers["x-kvpulse-routing"],
        int(headers["x-kvpulse-matched-tokens"]),
        answer["usage"]["prompt_tokens_details"]["cached_tokens"],
    )


def explain(client: httpx.Client, request: dict[str, Any]) -> Any:
    response = client.post(EXPLAIN, json=request)
    assert response.status_code == 200, response.text
    return response.json()


def matched(client: httpx.Client, request: dict[str, Any]) -> dict[str, int]:
    """By replica, those without a match left out."""
    replicas = explain(client, request)["replicas"]
    return {replica["replica"]: replica["matched_tokens"] for replica in replicas if replica["matched_tokens"]}


def open_client(stack: Stack) -> httpx.Client:
    return httpx.Client(base_url=stack.url, timeout=120)
