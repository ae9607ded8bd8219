"""A reserved slot on one engine replica, held exactly as long as its answer lasts."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from types import TracebackType
from typing import Any

from ray.serve.handle import DeploymentHandle

from app.decisions.routing import RoutingDecision, RoutingReason
from app.errors import UnavailableError
from deployments.engine_errors import EngineLostError
from deployments.routed_request import RoutedRequest

logger = logging.getLogger("ray.serve")

# The answer has ended by then, so the companion returns at once; a longer wait means that the replica is gone.
COMPANION_END_S = 5.0
# Of an answer that was broken off: its engine may never have got the HTTP request, and the companion waits for that.
BROKEN_OFF_END_S = 1.0

# A replica that has fallen silent gets a request now and then, to see whether only its feed is lost. If the replica
# itself hangs, the request does not wait for it but goes elsewhere.
PROBE_TIMEOUT_S = 1.0


class Lease:
    """`async with Lease(...) as lease:` leases a replica through the path's router and attends the answer.

    It is entered as soon as a replica is chosen, while that is still being asked for a slot: the HTTP request may go
    out at once. `holds` waits for the slot; nothing may be sent to the client before.

    On exit, however it comes about, the companion call ends first, the slot is released after it, and then the debit;
    this runs to its end even when the caller is cancelled meanwhile.

    Args:
        handle: of the path's engine deployment.
        path: for the error.
        routed: decides which replica.
        timeout_s: the longest wait for a replica with room.

    Raises:
        UnavailableError: on entry or from `holds`, when no replica had room in time.
        EngineLostError: likewise, when the one that was tried to see whether it lives did not answer.
    """

    _endings: set[asyncio.Task[None]] = set()  # noqa: RUF012 - keeps the tasks of all leases alive until they end

    def __init__(self, handle: DeploymentHandle[Any], path: str, routed: RoutedRequest, timeout_s: float) -> None:
        self.id = uuid.uuid4().hex
        self._method = handle.attend
        self._path = path
        self._routed = routed
        self._choice = self._method.choose_replica(routed)
        self._timeout_s = timeout_s
        self._companion: Any = None
        self.replica_id = ""
        self.used_tokens: int | None = None  # known once the lease has ended, unless its replica was lost

    async def __aenter__(self) -> Lease:
        self._reserving = asyncio.create_task(self._reserve())
        try:
            await asyncio.wait((self._reserving, self._routed.early_choice), return_when=asyncio.FIRST_COMPLETED)
            if self._reserving.done():
                self._reserving.result()
            else:
                self.replica_id, self._metadata = self._routed.early_choice.result()
        except BaseException:
            self._end_apart(BROKEN_OFF_END_S)
            raise
        return self

    async def holds(self, replica_id: str) -> bool:
        """Wait for the slot. Whether it is on that replica: a chosen one that turned out full has given none."""
        await asyncio.shield(self._reserving)
        return self.replica_id == replica_id

    @property
    def decision(self) -> RoutingDecision:
        """Why this replica."""
        made = self._routed.decision
        if made is not None and self.replica_id in ("", made.replica_id):
            return made
        return RoutingDecision(self.replica_id, RoutingReason.FALLBACK, 0, 0.0)

    @property
    def address(self) -> str:
        """`host:port` of the replica's private HTTP server."""
        return str(self._metadata["address"])

    @property
    def token(self) -> str:
        return str(self._metadata["token"])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(self._end_apart(COMPANION_END_S if kind is None else BROKEN_OFF_END_S))

    async def _reserve(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                self._routed.early_choice.add_done_callback(lambda _: self._limit_probe(limit))
                selection = await self._choice.__aenter__()
        except TimeoutError:
            if self._probing:
                self.replica_id = self.decision.replica_id
                raise EngineLostError("silent", suspect=True) from None
            raise UnavailableError(
                f"no engine of the {self._path} path had room within {self._timeout_s:g} s",
                code="no_ready_engine",
                retry_after_s=self._timeout_s,
            ) from None
        self.replica_id, self._metadata = str(selection.replica_id), selection.replica_metadata
        # No call of this request in Serve's eyes: a client's leaving would cancel it before it can tell the cost.
        self._companion = contextvars.Context().run(self._method.dispatch, selection, self.id)

    @property
    def _probing(self) -> bool:
        decision = self._routed.decision
        return decision is not None and decision.reason is RoutingReason.STALE_PROBE

    def _limit_probe(self, limit: asyncio.Timeout) -> None:
        if self._probing and not self._reserving.done():
            limit.reschedule(asyncio.get_running_loop().time() + PROBE_TIMEOUT_S)

    def _end_apart(self, companion_end_s: float) -> asyncio.Task[None]:
        ending = asyncio.create_task(self._end(companion_end_s))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _end(self, companion_end_s: float) -> None:
        self._reserving.cancel()  # no effect once the slot is there; Serve gives back a slot that nobody waits for
        await asyncio.wait((self._reserving,))
        try:
            if self._companion is not None:
                await self._end_companion(companion_end_s)
        finally:
            self._routed.release()
            if not self._reserving.cancelled() and self._reserving.exception() is None:
                await self._choice.__aexit__(None, None, None)

    async def _end_companion(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                self.used_tokens = await self._companion
        except TimeoutError:
            self._companion.cancel()
            logger.warning("lease %s: its companion on %s did not end", self.id, self.replica_id)
        except Exception as error:  # the replica died, or was replaced, under the answer: there is no slot to keep
            logger.info("lease %s on %s ended with %s", self.id, self.replica_id, type(error).__name__)
