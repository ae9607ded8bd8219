"""What `live_page` and `prewarm` may say: who may embed the page, and what a new replica computes before it serves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.config.part import Part, PositiveInt, Seconds, Share

Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")]


class LivePageConfig(Part):
    """The page at `/pulse`."""

    low_hit_ratio: Share = Field(default=0.75, description="a prefix hit ratio below this is called low")
    max_listeners: PositiveInt = Field(default=32, description="open pages of one ingress replica")
    embed_in: tuple[Origin, ...] = Field(default=(), description="origins whose pages may show it in a frame")


class PrewarmConfig(Part):
    """A new engine replica computes the hottest prefixes of its path before it takes traffic."""

    enabled: bool = True
    budget_s: Seconds = Field(default=15.0, description="it takes traffic after this, whatever is computed by then")
    budget_tokens: PositiveInt = Field(default=32_768, description="prompt tokens; never more than half of the cache")
