"""What one process knows of the engine replicas of one path, kept up to date by their pulse feeds."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

from app.config.schema import RoutingConfig
from app.decisions.routing import RoutingDecision, RoutingRequest, ScoredReplica, explain, route
from app.requests import Prompt, RequestPath
from app.state.chain_hashes import ChainHasher, text_extra
from app.state.cluster_view import ClusterView, InFlight
from app.state.pressure import ReplicaReading
from deployments.pulse_messages import FeedEndpoint
from deployments.pulse_subscriber import PulseSubscriber
from deployments.replica_sets import IN_THIS_PROCESS
from deployments.routed_request import RoutedRequest


class PathReplicas:
    """The view of one path. `told` is for `ReplicaSets.listen`.

    Args:
        hashing_key: of the application; engines hash with the same.
        subscriber: of this process; follows the replicas.
    """

    def __init__(
        self, rules: RoutingConfig, hashing_key: bytes, subscriber: PulseSubscriber, rng: random.Random
    ) -> None:
        self._rules = rules
        self._hashing_key = hashing_key
        self._subscriber = subscriber
        self._rng = rng
        self._hasher: ChainHasher | None = None
        self._followed: frozenset[str] | None = None
        self.view = ClusterView(time.monotonic, stale_after_s=rules.stale_after_s, max_blocks=rules.max_index_blocks)

    def told(self, replicas: Mapping[str, dict[str, Any]]) -> None:
        """Serve says that these replicas run: unique id -> metadata."""
        self.view.keep_only(replicas)
        for gone in (self._followed or frozenset()) - replicas.keys():
            self._subscriber.unfollow(gone)
        for replica_id, metadata in replicas.items():
            endpoint = FeedEndpoint(**metadata["feed"])
            if not endpoint.caches_prefixes:
                self._hasher = None
            elif self._hasher is None or self._hasher.block_size != endpoint.block_size:
                self._hasher = ChainHasher(self._hashing_key, endpoint.block_size)
            self._subscriber.follow(replica_id, endpoint, self.view)
        self._followed = frozenset(replicas)

    def request(self, prompt: Prompt, hashed: RoutingRequest | None = None) -> RoutingRequest:
        """Hashes the prompt by the block size of this path's engines.

        Args:
            hashed: the same prompt for the other path; its hashes serve where the block sizes are equal.
        """
        hasher = self._hasher
        if hasher is None:
            return RoutingRequest(prompt.length_tokens, (), 1)
        if hashed is not None and hashed.block_size == hasher.block_size:
            return hashed
        hashes = hasher.prompt(prompt.tokens, text_extra(prompt.cache_salt))
        return RoutingRequest(prompt.length_tokens, hashes, hasher.block_size)

    def cached_tokens(self, request: RoutingRequest) -> int:
        """Prompt tokens that some replica need not compute. As in engines, the last one is always computed."""
        most_blocks = (request.prompt_tokens - 1) // request.block_size
        return min(self.view.longest_match(request.hashes), most_blocks) * request.block_size

    def readings(self) -> list[ReplicaReading] | None:
        """What admission has to know of each replica now. None until Serve has told which there are."""
        if self._followed is None:
            return None
        return [
            ReplicaReading(
                standing.replica_id,
                standing.load,
                standing.age_s,
                kv_debit_tokens=standing.pending_prefill_tokens,
                prefill_debit_tokens=standing.pending_prefill_tokens,
            )
            for standing in self.view.standings()
        ]

    def stale_count(self) -> int:
        """Replicas unheard of for too long."""
        return sum(standing.stale for standing in self.view.standings())

    def routed(self, request: RoutingRequest, answer_tokens: int) -> RoutedRequest:
        """For `choose_replica`. `answer_tokens` are expected beside the prompt."""

        def debit(decision: RoutingDecision) -> InFlight:
            uncached_tokens = request.prompt_tokens - decision.matched_tokens
            context_tokens = request.prompt_tokens + answer_tokens
            return self.view.debit(decision.replica_id, uncached_tokens, context_tokens, request.hashes)

        return RoutedRequest(
            lambda: route(request, self.view, self._rules, self._rng), debit, request.excluded, self._rng
        )

    def explain(self, request: RoutingRequest) -> tuple[list[ScoredReplica], RoutingDecision | None]:
        """The cost of every replica, cheapest first, and a choice as a request would get it now."""
        scored = sorted(explain(request, self.view, self._rules), key=lambda replica: replica.cost)
        return scored, route(request, self.view, self._rules, self._rng)


def follow_replicas(
    rules: RoutingConfig, engines: Mapping[RequestPath, Any], hashing_key: bytes, subscriber: PulseSubscriber
) -> dict[RequestPath, PathReplicas]:
    """Know each path's caches and loads from now on, requests or not.

    Args:
        engines: handles, by HOT and COLD.
    """
    replicas = {}
    for path, handle in engines.items():
        replicas[path] = PathReplicas(rules, hashing_key, subscriber, random.Random())  # noqa: S311 - ties
        IN_THIS_PROCESS.listen(handle.deployment_name, replicas[path].told)
        handle.options()  # makes Serve build the router, which is told the replicas
    return replicas
