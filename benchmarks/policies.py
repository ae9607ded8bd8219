"""Who decides where a request goes: KVPulse, what others do, and an oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from app.config.schema import RoutingConfig
from app.decisions.routing import RoutingRequest, decide, route, score
from app.state.cluster_view import ClusterView, InFlight, ReplicaStanding
from app.state.prefix_index import PrefixIndex
from app.state.pulse import CacheChange, ReplicaLoad
from benchmarks.engine_model import SimulatedEngine, SimulatedRequest
from benchmarks.workloads import BLOCK_SIZE


class Clock:
    """The simulation's time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Policy(Protocol):
    """Chooses a replica by its number. `report` is called with what a feed delivers, late."""

    wants_reports: bool

    def choose(self, request: SimulatedRequest) -> int: ...
    def report(self, replica: int, change: CacheChange, load: ReplicaLoad) -> None: ...
    def ended(self, request: SimulatedRequest) -> None: ...


class _Uninformed:
    wants_reports = False

    def report(self, replica: int, change: CacheChange, load: ReplicaLoad) -> None: ...
    def ended(self, request: SimulatedRequest) -> None: ...


class RoundRobin(_Uninformed):
    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        self._replicas = len(engines)
        self._next = -1

    def choose(self, request: SimulatedRequest) -> int:
        self._next = (self._next + 1) % self._replicas
        return self._next


class LeastLoaded(_Uninformed):
    """Fewest requests in flight, known exactly."""

    def __init__(self, engines: Sequence[SimulatedEngine], rng: random.Random) -> None:
        self._engines = engines
        self._rng = rng

    def choose(self, request: SimulatedRequest) -> int:
        return min(range(len(self._engines)), key=lambda n: (self._engines[n].in_flight, self._rng.random()))


class RoutedPrefixes(_Uninformed):
    """As Ray's PrefixCacheAffinityRouter: knows what it routed, never what is evicted, and has no bound.

    The replicas with the longest match, of those the one with the fewest requests; below a match of 10 % those that
    were sent the least text. Its tree of characters is a set of blocks here, which is coarser by less than a block.
    """

    def __init__(self, engines: Sequence[SimulatedEngine], rng: random.Random, imbalanced_threshold: float) -> None:
        self._engines = engines
        self._rng = rng
        self._imbalanced_threshold = imbalanced_threshold
        self._routed = PrefixIndex(max_blocks=1 << 30)

    def choose(self, request: SimulatedRequest) -> int:
        every = range(len(self._engines))
        queues = [engine.in_flight for engine in self._engines]
        if max(queues) - min(queues) > self._imbalanced_threshold:
            options: Sequence[int] = self._rng.sample(every, 2)
        else:
            matched = self._routed.matched_blocks(request.hashes)
            longest = max(matched.values(), default=0)
            if longest * BLOCK_SIZE < 0.1 * request.prompt_tokens:
                sent = [self._routed.blocks_of(str(n)) for n in every]
                options = [n for n in every if sent[n] == min(sent)]
            else:
                options = [int(replica) for replica, blocks in matched.items() if blocks == longest]
        chosen = min(options, key=lambda n: (queues[n], self._rng.random()))
        self._routed.add(str(chosen), request.hashes)
        return chosen


def _routing_request(request: SimulatedRequest) -> RoutingRequest:
    return RoutingRequest(request.prompt_tokens, request.hashes, BLOCK_SIZE)


class Oracle:
    """KVPulse's cost of every replica with the caches, the loads and the requests on their way as they are now."""

    wants_reports = False

    def __init__(self, engines: Sequence[SimulatedEngine], rng: random.Random, rules: RoutingConfig) -> None:
        self._engines = engines
        self._rng = rng
        self._rules = rules
        self._coming = PrefixIndex(max_blocks=1 << 30)
        self._sent: dict[SimulatedRequest, str] = {}

    def choose(self, request: SimulatedRequest) -> int:
        asked = _routing_request(request)
        coming = self._coming.matched_blocks(request.hashes)
        scored = [
            score(asked, self._standing(n, max(engine.cached_blocks(request), coming.get(str(n), 0))), self._rules)
            for n, engine in enumerate(self._engines)
        ]
        decision = decide(asked, scored, self._rules, self._rng)
        assert decision is not None
        self._coming.add(decision.replica_id, request.hashes)
        self._sent[request] = decision.replica_id
        return int(decision.replica_id)

    def _standing(self, number: int, matched_blocks: int) -> ReplicaStanding:
        return ReplicaStanding(str(number), matched_blocks, self._engines[number].load(), 0.0, False)

    def report(self, replica: int, change: CacheChange, load: ReplicaLoad) -> None: ...

    def ended(self, request: SimulatedRequest) -> None:
        self._coming.remove(self._sent.pop(request), request.hashes)


class KVPulse:
    """The product's own index, view and decision, in as many routers as there are ingress replicas."""

    wants_reports = True

    def __init__(self, replicas: int, clock: Clock, rng: random.Random, rules: RoutingConfig, routers: int = 1) -> None:
        self._rng = rng
        self._rules = rules
        self.views = [ClusterView(clock, stale_after_s=rules.stale_after_s) for _ in range(routers)]
        self._debits: dict[SimulatedRequest, InFlight] = {}
        for view in self.views:
            view.keep_only([str(n) for n in range(replicas)])

    def choose(self, request: SimulatedRequest) -> int:
        view = self._rng.choice(self.views)
        decision = route(_routing_request(request), view, self._rules, self._rng)
        assert decision is not None
        self._debits[request] = view.debit(
            decision.replica_id,
            request.prompt_tokens - decision.matched_tokens,
            request.prompt_tokens,
            request.hashes,
        )
        return int(decision.replica_id)

    def report(self, replica: int, change: CacheChange, load: ReplicaLoad) -> None:
        for view in self.views:
            view.apply(str(replica), change, load)

    def ended(self, request: SimulatedRequest) -> None:
        self._debits.pop(request).release()
