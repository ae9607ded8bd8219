"""What one process knows of the replicas of one path: caches, loads with their age, and what it has sent since."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, islice
from math import inf
from threading import Lock

import msgspec

from app.state.debits import Debit, DebitLedger
from app.state.prefix_index import PrefixIndex
from app.state.pulse import CacheChange, ReplicaLoad

_CHUNK_BLOCKS = 512  # a change holds the lock for a fraction of a millisecond at a time, however large it is


class ReplicaStanding(msgspec.Struct, frozen=True):
    """One replica at one moment, as a request sees it.

    Args:
        matched_blocks: longest prefix of the request's blocks that it holds, or computes for a request of this process.
        load: its last report; None when there is none, or none any more.
        age_s: since it was last heard of; infinite when never.
        stale: not heard of for too long, or its load is unknown. Neither free nor full.
        pending_prefill_tokens: sent to it by this process and not yet in its reports.
        pending_decode_tokens: likewise.
        unprobed_s: since anything was last sent to it by this process; infinite when never.
    """

    replica_id: str
    matched_blocks: int
    load: ReplicaLoad | None
    age_s: float
    stale: bool
    pending_prefill_tokens: int = 0
    pending_decode_tokens: int = 0
    unprobed_s: float = inf


class _Replica:
    __slots__ = ("generation", "heard_at_s", "ledger", "load", "sent_at_s")

    def __init__(self, generation: int) -> None:
        self.load: ReplicaLoad | None = None
        self.heard_at_s = -inf
        self.sent_at_s = -inf
        self.ledger = DebitLedger()
        self.generation = generation  # of its cache knowledge; another one when earlier knowledge is void


class InFlight:
    """One request sent to a replica: its debit, and the blocks that are expected in the replica's cache."""

    __slots__ = ("_debit", "_generation", "_hashes", "_ledger", "_replica_id", "_view")

    def __init__(
        self, view: ClusterView, replica_id: str, replica: _Replica, debit: Debit, hashes: Sequence[int]
    ) -> None:
        self._view = view
        self._replica_id = replica_id
        self._generation = replica.generation
        self._ledger = replica.ledger
        self._debit = debit
        self._hashes = hashes

    def release(self) -> None:
        """The request has ended. From any thread, any number of times, also after the replica has left."""
        hashes, self._hashes = self._hashes, ()
        self._view._released(self._ledger, self._debit, self._replica_id, self._generation, hashes)


class ClusterView:
    """The replicas of one path, by unique id: a replica that restarts has another one.

    Thread-safe. Changes of one replica come from one thread, in order. `keep_only` says which replicas exist; what is
    told of others is dropped, so that a late message brings nobody back.

    Args:
        clock: monotonic seconds.
        stale_after_s: a replica unheard of for longer is stale. Its cache is remembered, its load is not trusted.
        settle_s: a report that comes so long after a debit contains that request.
        max_blocks: bound of the index.
    """

    def __init__(
        self, clock: Callable[[], float], *, stale_after_s: float, settle_s: float = 0.2, max_blocks: int = 2_000_000
    ) -> None:
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._settle_s = settle_s
        self._cached = PrefixIndex(max_blocks)
        self._coming = PrefixIndex(max_blocks)
        self._generations = count()
        self._replicas: dict[str, _Replica] = {}
        self._ids: list[str] = []  # the keys of _replicas, to sample from
        self._lock = Lock()

    def keep_only(self, replica_ids: Collection[str]) -> None:
        """These replicas exist. Others are forgotten at once; new ones begin unknown."""
        with self._lock:
            if self._replicas.keys() == set(replica_ids):
                return
            for gone in self._replicas.keys() - set(replica_ids):
                del self._replicas[gone]
                self._cached.clear(gone)
                self._coming.clear(gone)
            for replica_id in replica_ids:
                if replica_id not in self._replicas:
                    self._replicas[replica_id] = _Replica(next(self._generations))
            self._ids = list(self._replicas)

    def apply(self, replica_id: str, change: CacheChange, load: ReplicaLoad) -> bool:
        """A report: what changed in the cache since the one before, and the load. False: no such replica."""
        generation = self._heard(replica_id, load, forget=change.cleared)
        if generation is None:
            return False
        return self._in_chunks(self._cached.remove, replica_id, change.removed, generation) and self._in_chunks(
            self._cached.add, replica_id, change.stored, generation
        )

    def replace(self, replica_id: str, hashes: Iterable[int], load: ReplicaLoad) -> bool:
        """A snapshot: the whole cache, whatever was known before, and the load. False: no such replica."""
        generation = self._heard(replica_id, load, forget=True)
        return generation is not None and self._in_chunks(self._cached.add, replica_id, hashes, generation)

    def heartbeat(self, replica_id: str) -> None:
        """The replica is there and its last report still holds."""
        with self._lock:
            replica = self._replicas.get(replica_id)
            if replica is not None:
                self._refresh(replica)
            self._cached.sweep()

    def disconnected(self, replica_id: str) -> None:
        """Its feed is lost: no hit is predicted and its load is unknown until it reports again."""
        with self._lock:
            replica = self._replicas.get(replica_id)
            if replica is not None:
                replica.load = None
                self._forget_cache(replica_id, replica)

    def debit(self, replica_id: str, prefill_tokens: int, decode_tokens: int, hashes: Sequence[int] = ()) -> InFlight:
        """Count what is about to be sent until the replica's own reports contain it. Release it when the request ends.

        Args:
            prefill_tokens: prompt tokens it will have to compute.
            decode_tokens: context it will hold while it decodes.
            hashes: of the prompt's full blocks. Until the release they are expected in the replica's cache, where a
                running request keeps them: of several requests with a new prefix, all but the first follow it.
        """
        with self._lock:
            replica = self._replicas.get(replica_id)
            if replica is None:  # it has just left: counted nowhere
                replica, hashes = _Replica(next(self._generations)), ()
            replica.sent_at_s = now = self._clock()
            debit = Debit(prefill_tokens, decode_tokens, now)
            replica.ledger.put_in(debit)
            sent = InFlight(self, replica_id, replica, debit, hashes)
            generation = replica.generation
        self._in_chunks(self._coming.add, replica_id, hashes, generation)
        return sent

    def standings(self, hashes: Sequence[int] = ()) -> list[ReplicaStanding]:
        """All replicas."""
        with self._lock:
            matched = _merged(self._cached.matched_blocks(hashes), self._coming.matched_blocks(hashes))
            return self._standings({replica_id: matched.get(replica_id, 0) for replica_id in self._ids})

    def sample(
        self, hashes: Sequence[int], rng: random.Random, *, holders: int, others: int, also: str | None = None
    ) -> list[ReplicaStanding]:
        """The replicas worth comparing, in time that hardly depends on how many there are.

        Args:
            hashes: of the prompt's full blocks.
            holders: at most so many of those that hold the longest prefixes.
            others: so many random ones beside them; a replica may be drawn as both.
            also: one more, if it exists.
        """
        with self._lock:
            cached, coming = self._cached.match(hashes), self._coming.match(hashes)
            matched = _merged(cached.longest(holders, rng), coming.longest(holders, rng))
            drawn = self._ids if len(self._ids) <= others else rng.sample(self._ids, others)
            for replica_id in drawn if also not in self._replicas else (*drawn, also):
                if replica_id not in matched:
                    matched[replica_id] = max(cached.blocks_of(replica_id), coming.blocks_of(replica_id))
            return self._standings(matched)

    def longest_match(self, hashes: Sequence[int]) -> int:
        """Blocks of the longest prefix that some replica holds, or computes for a request of this process."""
        with self._lock:
            return max(self._cached.match(hashes).most_blocks, self._coming.match(hashes).most_blocks)

    @property
    def evicted_blocks(self) -> int:
        """Blocks the index forgot for want of room."""
        return self._cached.evicted_blocks

    def _standings(self, matched: dict[str, int]) -> list[ReplicaStanding]:
        now, stale_after_s, replicas = self._clock(), self._stale_after_s, self._replicas
        standings = []
        for replica_id, blocks in matched.items():
            replica = replicas[replica_id]
            load, ledger, age_s = replica.load, replica.ledger, now - replica.heard_at_s
            standings.append(
                ReplicaStanding(
                    replica_id,
                    blocks,
                    load,
                    age_s,
                    load is None or age_s > stale_after_s,
                    ledger.prefill_tokens,
                    ledger.decode_tokens,
                    now - replica.sent_at_s,
                )
            )
        return standings

    def _heard(self, replica_id: str, load: ReplicaLoad, *, forget: bool) -> int | None:
        """Takes the load, forgets the cache if told to, and names the generation that cache changes belong to."""
        with self._lock:
            replica = self._replicas.get(replica_id)
            if replica is None:
                return None
            replica.load = load
            self._refresh(replica)
            if forget:
                self._forget_cache(replica_id, replica)
            return replica.generation

    def _forget_cache(self, replica_id: str, replica: _Replica) -> None:
        replica.generation = next(self._generations)
        self._cached.clear(replica_id)
        self._coming.clear(replica_id)

    def _released(
        self, ledger: DebitLedger, debit: Debit, replica_id: str, generation: int, hashes: Sequence[int]
    ) -> None:
        with self._lock:
            ledger.take_out(debit)
        # Of requests with common blocks the first to end takes them out: by then the cache itself has been reported.
        self._in_chunks(self._coming.remove, replica_id, hashes, generation)

    def _refresh(self, replica: _Replica) -> None:
        replica.heard_at_s = now = self._clock()
        replica.ledger.settle(now - self._settle_s)

    def _in_chunks(
        self, change: Callable[[str, Iterable[int]], None], replica_id: str, hashes: Iterable[int], generation: int
    ) -> bool:
        """False: the replica left or was disconnected meanwhile, and the rest was dropped."""
        remaining = iter(hashes)
        while chunk := list(islice(remaining, _CHUNK_BLOCKS)):
            with self._lock:
                replica = self._replicas.get(replica_id)
                if replica is None or replica.generation != generation:
                    return False
                change(replica_id, chunk)
        return True


def _merged(cached: dict[str, int], coming: dict[str, int]) -> dict[str, int]:
    """The longer match of each replica."""
    for replica_id, blocks in coming.items():
        if blocks > cached.get(replica_id, 0):
            cached[replica_id] = blocks
    return cached
