"""Which replica of a path gets a request: the less loaded of two random ones, never one that has just failed."""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class FailoverRouter(RequestRouter):
    """Power of two choices over the replicas that the caller does not exclude.

    `choose_replica(excluded)` takes the unique ids of replicas to avoid as its one argument. While all are excluded
    Serve asks again with backoff, so the caller must set a deadline. Not a `FIFOMixin`: that would hand a chosen
    replica to whichever request has waited longest, excluded or not.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        excluded = pending_request.args[0] if pending_request is not None and pending_request.args else ()
        usable = [replica for replica in candidate_replicas if replica.replica_id.unique_id not in excluded]
        # In random order: of equally loaded replicas Serve takes the first.
        return [random.sample(usable, min(2, len(usable)))]
