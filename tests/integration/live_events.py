"""The live page's events, read as the page reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from tests.integration.stack import Stack


def update_of(stack: Stack, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The first update of a new stream: everything the board knows. AssertionError when it is away."""
    with httpx.stream("GET", f"{stack.url}/pulse/events", headers=dict(headers or {}), timeout=60) as response:
        assert response.status_code == 200, response.read()
        name = ""
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            name = value if field == "event" else name
            if field == "data" and name != "settings":
                assert name == "pulse", name
                update: dict[str, Any] = json.loads(value)
                return update
    raise AssertionError("the stream ended before its first update")


def latest(update: dict[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    """The last sample of a path (`engines`, `paths`) or a replica, by column."""
    values = update["samples"][-1][kind][name]
    return None if values is None else dict(zip(update["columns"][kind], values, strict=True))
