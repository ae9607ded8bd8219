"""What the application tells its ingress when it is composed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.config.keys import KeyRing
from app.config.schema import AppConfig
from app.requests import RequestPath


@dataclass(frozen=True)
class EnginesSpec:
    """What the ingress needs to know of one path's engines.

    Args:
        context_tokens: longest prompt plus answer.
        block_size: tokens per KV block.
        slots_per_replica: requests that one replica takes, running or queued in the engine.
        heeds_priority: its scheduler knows priorities.
        chunk_tokens: most tokens of one prompt in a step.
    """

    context_tokens: int
    block_size: int
    slots_per_replica: int
    heeds_priority: bool
    chunk_tokens: int


@dataclass(frozen=True)
class IngressSpec:
    """What the ingress needs to know of the rest.

    Args:
        config: the whole configuration.
        engine_arguments: of the path with the longest context; the renderer is made from them.
        frontend_arguments: parsers and templates, as the engines have them.
        engines: by HOT and COLD.
        key_ring: None serves without keys.
    """

    config: AppConfig
    engine_arguments: dict[str, Any]
    frontend_arguments: dict[str, Any]
    engines: dict[RequestPath, EnginesSpec]
    key_ring: KeyRing | None

    @property
    def context_tokens(self) -> dict[RequestPath, int]:
        return {path: engines.context_tokens for path, engines in self.engines.items()}
