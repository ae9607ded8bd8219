"""A reserved slot on one engine replica, held exactly as long as its answer lasts."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection
from types import TracebackType
from typing import Any

from ray.serve.handle import DeploymentHandle

from app.errors import UnavailableError

logger = logging.getLogger("ray.serve")

# The answer has ended by then, so the companion returns at once; a longer wait means that the replica is gone.
COMPANION_END_S = 5.0


class Lease:
    """`async with Lease(...) as lease:` leases a replica through the path's router and attends the answer.

    On exit, however it comes about, the companion call ends first and the slot is released after it; this runs to its
    end even when the caller is cancelled meanwhile.

    Args:
        handle: of the path's engine deployment.
        excluded: unique ids of replicas that must not be chosen.
        timeout_s: the longest wait for a replica with room.

    Raises:
        UnavailableError: on entry, when no replica had room in time.
    """

    _endings: set[asyncio.Task[None]] = set()  # noqa: RUF012 - keeps the tasks of all leases alive until they end

    def __init__(self, handle: DeploymentHandle[Any], path: str, excluded: Collection[str], timeout_s: float) -> None:
        self._method = handle.attend
        self._path = path
        self._choice = self._method.choose_replica(frozenset(excluded))
        self._timeout_s = timeout_s
        self._companion: Any = None
        self.id = uuid.uuid4().hex

    async def __aenter__(self) -> Lease:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._selection = await self._choice.__aenter__()
        except TimeoutError:
            raise UnavailableError(
                f"no engine of the {self._path} path had room within {self._timeout_s:g} s",
                code="no_ready_engine",
                retry_after_s=self._timeout_s,
            ) from None
        self._companion = self._method.dispatch(self._selection, self.id)
        return self

    @property
    def replica_id(self) -> str:
        return str(self._selection.replica_id)

    @property
    def address(self) -> str:
        """`host:port` of the replica's private HTTP server."""
        return str(self._selection.replica_metadata["address"])

    @property
    def token(self) -> str:
        return str(self._selection.replica_metadata["token"])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ending = asyncio.create_task(self._end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(COMPANION_END_S):
                await self._companion
        except TimeoutError:
            self._companion.cancel()
            logger.warning("lease %s: its companion on %s did not end", self.id, self.replica_id)
        except Exception as error:  # the replica died, or was replaced, under the answer: there is no slot to keep
            logger.info("lease %s on %s ended with %s", self.id, self.replica_id, type(error).__name__)
        finally:
            await self._choice.__aexit__(None, None, None)
