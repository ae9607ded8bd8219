"""Whether every path has an engine that can answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ray import serve
from ray.serve.schema import ReplicaState  # type: ignore[attr-defined]  # it is there, and documented

CACHE_S = 0.5


class Readiness:
    """Asks the Serve controller, at most every `CACHE_S` seconds, which deployments have a running replica.

    Args:
        deployments: names of the engine deployments of this application.
    """

    def __init__(self, deployments: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._deployments = deployments
        self._application = serve.get_replica_context().app_name
        self._clock = clock
        self._asked_at = float("-inf")
        self._answer = ""

    def waiting_for(self) -> str:
        """What is missing, in words; empty when every path is ready. Blocks for one controller call."""
        if self._clock() - self._asked_at > CACHE_S:
            self._answer = self._ask()
            self._asked_at = self._clock()
        return self._answer

    def _ask(self) -> str:
        application = serve.status().applications.get(self._application)
        if application is None:
            return f"application {self._application} is not deployed"
        missing = []
        for name in self._deployments:
            status = application.deployments.get(name)
            if status is None or not status.replica_states.get(ReplicaState.RUNNING, 0):
                why = f" ({status.message})" if status is not None and status.message else ""
                missing.append(f"{name} has no running replica{why}")
        return "; ".join(missing)
