"""A model of one vLLM engine: its block cache, its step loop with chunked prefill, its load report.

Kept from vLLM: blocks in use are counted by reference, the rest is an LRU list into which a finished request's blocks
go tail first; a prefix hit ends before the last token; a step takes one token of each decoding sequence and fills its
budget with prompt tokens, first come first served; decoded blocks are cached too. Left out: preemption (a request is
admitted when its whole output fits).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from app.state.pulse import CacheChange, ReplicaLoad

_MASK = (1 << 60) - 1
_output_blocks = count(1)  # decoded blocks are like no prompt's


@dataclass(frozen=True)
class EngineSpeed:
    """Costs of a step, of the order of a 70B-class model on a node of H100s."""

    step_s: float = 0.010
    prefill_s_per_token: float = 1 / 6000
    decode_s_per_context_token: float = 2e-8
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    block_size: int = 32


@dataclass(eq=False)
class SimulatedRequest:
    """One request on its way. Times in seconds of the simulation."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]  # of the full blocks of the prompt
    to_compute: int = 0  # prompt tokens
    cached_tokens: int = 0
    first_token_s: float = 0.0
    computed: int = 0
    decoded: int = 0
    held: list[int] = field(default_factory=list)  # hashed blocks this request holds, first to last
    anonymous: int = 0  # blocks it holds that carry no hash (yet)


class BlockCache:
    """Blocks by hash: in use (counted) or cached and free (LRU)."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # next to be evicted first
        self._blank = blocks
        self.changed: dict[int, bool] = {}  # since the last report: hash -> held now

    @property
    def available(self) -> int:
        return self._blank + len(self._idle)

    @property
    def usage_ratio(self) -> float:
        return 1 - self.available / self.blocks

    def prefix_blocks(self, hashes: Sequence[int], limit: int) -> int:
        """Leading blocks that are cached, at most `limit`."""
        users, idle = self._users, self._idle
        for depth in range(min(limit, len(hashes))):
            if hashes[depth] not in users and hashes[depth] not in idle:
                return depth
        return min(limit, len(hashes))

    def fits(self, hits: Sequence[int], more: int) -> bool:
        """Whether these cached blocks can be held and `more` be taken beside them."""
        return self.available - sum(block in self._idle for block in hits) >= more

    def hold(self, hits: Sequence[int]) -> None:
        for block in hits:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def take(self, blocks: int) -> None:
        """Blank blocks first, then the least recently used."""
        blank = min(blocks, self._blank)
        self._blank -= blank
        for _ in range(blocks - blank):
            self.changed[self._idle.popitem(last=False)[0]] = False

    def name(self, block: int) -> bool:
        """A taken block is full. False: another block has the same content, this one stays without a name."""
        if block in self._users or block in self._idle:
            return False
        self._users[block] = 1
        self.changed[block] = True
        return True

    def give_back(self, held: Sequence[int], anonymous: int) -> None:
        self._blank += anonymous
        for block in reversed(held):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._idle[block] = None

    def net_change(self) -> CacheChange:
        """What changed since it was asked last."""
        changed, self.changed = self.changed, {}
        return CacheChange(
            removed=tuple(block for block, held in changed.items() if not held),
            stored=tuple(block for block, held in changed.items() if held),
        )


class SimulatedEngine:
    """One engine. Its owner calls `submit`, and `advance` at the time that `next_event_s` names.

    Steps without any prompt tokens are taken many at a time, up to the next end of a sequence or arrival.

    Args:
        blocks: of its cache.
        tells_queued: report a prompt's blocks as held when the request is accepted, not when they are computed.
    """

    def __init__(self, blocks: int, speed: EngineSpeed, tells_queued: bool = False) -> None:
        self.cache = BlockCache(blocks)
        self.next_event_s: float | None = None
        self.computed_tokens = 0
        self.finished: list[SimulatedRequest] = []
        self._speed = speed
        self._tells_queued = tells_queued
        self._waiting: deque[SimulatedRequest] = deque()
        self._prefilling: deque[SimulatedRequest] = deque()
        self._decoding: list[SimulatedRequest] = []
        self._context_tokens = 0  # of the decoding sequences
        self._chunks: list[tuple[SimulatedRequest, int]] = []  # prompt tokens of the step under way
        self._steps = 1  # equal steps under way
        self._step_s = 0.0
        self._began_s = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    def cached_blocks(self, request: SimulatedRequest) -> int:
        return self.cache.prefix_blocks(request.hashes, (request.prompt_tokens - 1) // self._speed.block_size)

    def load(self) -> ReplicaLoad:
        return ReplicaLoad(
            running_requests=len(self._prefilling) + len(self._decoding),
            waiting_requests=len(self._waiting),
            queued_prefill_tokens=sum(r.to_compute for r in self._waiting)
            + sum(r.prompt_tokens - r.computed for r in self._prefilling),
            decode_tokens=self._context_tokens,
            kv_usage_ratio=self.cache.usage_ratio,
            kv_blocks=self.cache.blocks,
        )

    def submit(self, request: SimulatedRequest, now: float) -> None:
        request.to_compute = request.prompt_tokens - self.cached_blocks(request) * self._speed.block_size
        self._waiting.append(request)
        if self._tells_queued:
            self.cache.changed.update(dict.fromkeys(request.hashes, True))
        if self.next_event_s is None:
            self._begin_step(now)
        elif self._steps > 1:  # end the run of equal steps with the one under way
            self._steps = min(self._steps, int((now - self._began_s) / self._step_s) + 1)
            self.next_event_s = self._began_s + self._steps * self._step_s

    def advance(self) -> None:
        """The steps under way end."""
        now = self.next_event_s
        assert now is not None
        self._decode(self._steps)
        for request, tokens in self._chunks:
            self._prefill(request, tokens, now)
        self._begin_step(now)

    def _begin_step(self, now: float) -> None:
        budget = self._speed.max_num_batched_tokens - len(self._decoding)
        self._chunks = []
        for request in self._prefilling:
            budget = self._plan(request, budget)
        while budget > 0 and self._waiting and self._admit(self._waiting[0]):
            request = self._waiting.popleft()
            self._prefilling.append(request)
            budget = self._plan(request, budget)
        prefill = sum(tokens for _, tokens in self._chunks)
        if not prefill and not self._decoding:
            self.next_event_s = None
            return
        speed = self._speed
        self._steps = 1 if prefill else min(r.output_tokens - r.decoded for r in self._decoding)
        context = self._context_tokens + len(self._decoding) * self._steps / 2
        self._step_s = speed.step_s + prefill * speed.prefill_s_per_token + context * speed.decode_s_per_context_token
        self._began_s = now
        self.next_event_s = now + self._steps * self._step_s

    def _plan(self, request: SimulatedRequest, budget: int) -> int:
        tokens = min(budget, request.prompt_tokens - request.computed)
        if tokens > 0:
            self._chunks.append((request, tokens))
        return budget - max(0, tokens)

    def _admit(self, request: SimulatedRequest) -> bool:
        if len(self._prefilling) + len(self._decoding) >= self._speed.max_num_seqs:
            return False
        hits = request.hashes[: self.cached_blocks(request)]
        more = -(-(request.prompt_tokens + request.output_tokens) // self._speed.block_size) - len(hits)
        if not self.cache.fits(hits, more):
            return False
        self.cache.hold(hits)
        self.cache.take(more)
        request.held, request.anonymous = list(hits), more
        request.computed = request.cached_tokens = len(hits) * self._speed.block_size
        return True

    def _prefill(self, request: SimulatedRequest, tokens: int, now: float) -> None:
        block_size = self._speed.block_size
        begin = request.computed // block_size
        request.computed += tokens
        self.computed_tokens += tokens
        for block in request.hashes[begin : request.computed // block_size]:
            if self.cache.name(block):
                request.held.append(block)
                request.anonymous -= 1
        if request.computed == request.prompt_tokens:
            self._prefilling.remove(request)
            request.first_token_s = now
            request.decoded = 1
            self.computed_tokens += 1
            self._decoding.append(request)
            self._context_tokens += request.prompt_tokens + 1
            self._end(request)

    def _decode(self, steps: int) -> None:
        self.computed_tokens += steps * len(self._decoding)
        self._context_tokens += steps * len(self._decoding)
        for request in self._decoding:
            request.decoded += steps
        for request in [r for r in self._decoding if r.decoded >= r.output_tokens]:
            self._end(request)

    def _end(self, request: SimulatedRequest) -> None:
        if request.decoded < request.output_tokens:
            return
        self._decoding.remove(request)
        self._context_tokens -= request.prompt_tokens + request.decoded
        for _ in range(request.output_tokens // self._speed.block_size):
            block = next(_output_blocks) * 0x9E3779B97F4A7C15 & _MASK
            if self.cache.name(block):
                request.held.append(block)
                request.anonymous -= 1
        self.cache.give_back(request.held, request.anonymous)
        self.finished.append(request)
