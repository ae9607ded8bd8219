"""Which replica of a path gets a request: Serve's adapter of `app.decisions.routing`."""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from deployments import replica_sets
from deployments.routed_request import RoutedRequest

# Serve pickles the class by value, and with it what its methods name: of this project only modules and classes.


class PrefixCacheAwareRouter(RequestRouter):
    """Asks the request itself, which carries what this process knows of the path's caches and loads.

    `choose_replica(routed)` takes a RoutedRequest as its one argument; Serve does not serialise it. Not a `FIFOMixin`:
    that would hand a chosen replica to whichever request has waited longest. A call without one (statistics, say)
    gets the less busy of two random replicas. While every replica is excluded or full Serve asks again with backoff,
    so the caller must set a deadline.
    """

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        metadata = {replica.replica_id.unique_id: replica.replica_metadata or {} for replica in replicas}
        replica_sets.IN_THIS_PROCESS.tell(self._deployment_id.name, metadata)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        routed = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if not isinstance(routed, RoutedRequest):
            return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        chosen = routed.choose(by_id, self._is_full)
        if chosen is None:
            return []
        # Of the others, in random order, Serve takes the one with the shortest queue when the chosen one is full.
        others = [replica for name, replica in by_id.items() if name != chosen and name not in routed.excluded]
        return [[by_id[chosen]], random.sample(others, len(others))]

    def _is_full(self, replica: RunningReplica) -> bool:
        """As far as Serve has last heard; a replica unheard of is not."""
        queue_length = self.replica_queue_len_cache.get(replica.replica_id)
        return queue_length is not None and queue_length >= replica.max_ongoing_requests
