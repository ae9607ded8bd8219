"""vLLM's table of requests, as far as it tells what an answer cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from deployments.sequences import follow_sequences


class FakeOutputProcessor:
    """`ask` adds a sequence, whose state it returns."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}
        follow_sequences(self)

    def add_request(self, request: Any, prompt: str | None, parent_req: Any = None) -> None:
        self.request_states[request.request_id] = SimpleNamespace(
            request_id=request.request_id,
            parent_req=parent_req,
            prompt_len=request.prompt_len,
            stats=SimpleNamespace(num_generation_tokens=0) if request.counted else None,
        )

    def ask(self, name: str, prompt_len: int = 10, parent: str | None = None, counted: bool = True) -> Any:
        request = SimpleNamespace(request_id=name, prompt_len=prompt_len, counted=counted, cache_salt=None)
        self.add_request(request, None, parent_req=None if parent is None else SimpleNamespace(request_id=parent))
        return self.request_states[name]
