"""One request on its way to a replica: carries the decision into Serve's router, and the choice back out at once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

from app.decisions.routing import RoutingDecision, RoutingReason
from app.state.cluster_view import InFlight

logger = logging.getLogger("ray.serve")


class RoutedRequest:
    """What `choose_replica` takes. Made in the ingress's event loop, asked by Serve's router, maybe in another thread.

    Args:
        decide: the cheapest replica of the path; None when the path knows of none.
        debit: counts the request against a replica until the debit is released.
        excluded: unique ids of replicas that must not be chosen.
        rng: chooses where the decision is of no use.
    """

    def __init__(
        self,
        decide: Callable[[], RoutingDecision | None],
        debit: Callable[[RoutingDecision], InFlight],
        excluded: Collection[str],
        rng: random.Random,
    ) -> None:
        self.excluded = excluded
        self.decision: RoutingDecision | None = None
        self._decide = decide
        self._make_debit = debit
        self._rng = rng
        self._debit: InFlight | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._early: asyncio.Future[tuple[str, dict[str, Any]]] = self._loop.create_future()

    @property
    def early_choice(self) -> asyncio.Future[tuple[str, dict[str, Any]]]:
        """Id and metadata of the replica that will most likely be reserved, before it has been asked."""
        return self._early

    def choose(self, candidates: Mapping[str, Any], is_full: Callable[[Any], bool]) -> str | None:
        """The unique id of one of `candidates`, or None when all are excluded. Never raises: Serve would leave the
        request waiting for ever.
        """
        usable = [name for name in candidates if name not in self.excluded]
        if not usable:
            return None
        decision = self._decided(usable)
        self.decision = decision
        self._move_debit(decision)
        chosen = candidates[decision.replica_id]
        if not is_full(chosen):
            self._loop.call_soon_threadsafe(self._tell, decision.replica_id, chosen.replica_metadata)
        return decision.replica_id

    def release(self) -> None:
        """The request has ended, or another one takes its place: nothing of it counts any more. Idempotent."""
        self._ended = True
        if self._debit is not None:
            self._debit.release()

    def _decided(self, usable: list[str]) -> RoutingDecision:
        try:
            decision = self._decide()
        except Exception:
            logger.exception("routing failed; a random replica is taken")
            decision = None
        if decision is None or decision.replica_id not in usable:
            return RoutingDecision(self._rng.choice(usable), RoutingReason.FALLBACK, 0, 0.0)
        return decision

    def _move_debit(self, decision: RoutingDecision) -> None:
        if self._debit is not None:
            self._debit.release()
        self._debit = self._make_debit(decision)
        if self._ended:  # meanwhile, in the other thread
            self._debit.release()

    def _tell(self, replica_id: str, metadata: dict[str, Any]) -> None:
        if not self._early.done():
            self._early.set_result((replica_id, metadata))
