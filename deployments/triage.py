"""Which path a rendered request takes, by what caches, frequent prefixes and the client's session say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.config.keys import Client
from app.config.schema import AppConfig
from app.decisions.classifier import Classification, classify, engine_priority
from app.decisions.routing import RoutingRequest
from app.requests import Prompt, RequestFeatures, RequestPath
from app.state.heavy_hitters import HeavyHitters
from app.state.sessions import Session, Sessions
from deployments.path_replicas import PathReplicas
from deployments.rendering import Rendered


@dataclass(frozen=True, slots=True)
class Triaged:
    """A request on its path.

    Args:
        features: with what the caches of that path's engines hold of it.
        found: the path, its reason, and the priority that the rest of its session will have.
        hashed: the prompt as the hot engines hash it.
        may_move: the other path's engines would do as well.
        prompt: what was hashed; None where nobody needs it.
    """

    features: RequestFeatures
    found: Classification
    hashed: RoutingRequest
    may_move: bool
    prompt: Prompt | None = None

    @property
    def priority(self) -> int:
        """vLLM's, of this request alone."""
        return engine_priority(self.found, self.features)


class Triage:
    """Classifies requests, and remembers what later ones depend on.

    Args:
        context_tokens: longest prompt plus answer of the HOT and COLD engines.
        replicas: of the same.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: AppConfig,
        context_tokens: Mapping[RequestPath, int],
        replicas: Mapping[RequestPath, PathReplicas],
        clock: Callable[[], float],
    ) -> None:
        self._rules = config.routing
        self._context_tokens = context_tokens
        self._replicas = replicas
        self._hitters = HeavyHitters(config.admission.heavy_hitters, clock)
        self._sessions = Sessions(config.admission.sessions, clock)

    def take(self, rendered: Rendered, client: Client, session_label: str | None) -> Triaged:
        """Classify a request that is to run. Its prefix counts from now on, and its session is on its path."""
        triaged = self._triaged(rendered, client, session_label, self._hitters.see)
        if session_label is not None and triaged.features.forced_path is None:
            session = Session(triaged.found.path, triaged.found.priority)
            self._sessions.remember(client.name, session_label, session)
        return triaged

    def look(self, rendered: Rendered, client: Client, session_label: str | None) -> Triaged:
        """What `take` would find. Nothing is remembered."""
        return self._triaged(rendered, client, session_label, self._hitters.frequent_blocks)

    def _triaged(
        self,
        rendered: Rendered,
        client: Client,
        session_label: str | None,
        frequent_blocks: Callable[[Sequence[int]], int],
    ) -> Triaged:
        hot, cold = self._replicas[RequestPath.HOT], self._replicas[RequestPath.COLD]
        hashed = hot.request(rendered.prompt)
        features = replace(
            rendered.features,
            cached_tokens=hot.cached_tokens(hashed),
            heavy_prefix_tokens=frequent_blocks(hashed.hashes) * hashed.block_size,
            key_priority=client.priority,
        )
        session = None if session_label is None else self._sessions.recall(client.name, session_label)
        found = classify(features, self._rules, self._context_tokens, session)
        if found.path is RequestPath.COLD:
            features = replace(features, cached_tokens=cold.cached_tokens(cold.request(rendered.prompt, hashed)))
        fits_both = features.least_context_tokens <= min(self._context_tokens.values())
        return Triaged(features, found, hashed, fits_both and features.forced_path is None, rendered.prompt)
