"""What arrives, when: a recorded trace, or groups of requests that share long prefixes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

BLOCK_SIZE = 32
_TRACE_BLOCK = 512
_TRACE_TICK_MS = 3000
_MASK = (1 << 60) - 1


def _spread(number: int) -> int:
    """A distinct 60-bit hash per number; odd numbers are left to decoded blocks."""
    return number * 0x5851F42D4C957F2D & _MASK


@dataclass(frozen=True)
class Arrival:
    """One request. `content` numbers what its blocks of `content_tokens` tokens hold: equal numbers, equal tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    content: tuple[int, ...]
    content_tokens: int

    def hashes(self) -> list[int]:
        """Of the prompt's full blocks of BLOCK_SIZE tokens."""
        per_content = self.content_tokens // BLOCK_SIZE
        blocks = [_spread(number * per_content + part) for number in self.content for part in range(per_content)]
        return blocks[: self.prompt_tokens // BLOCK_SIZE]


@dataclass(frozen=True)
class Workload:
    """Arrivals in order, for replicas whose caches have `blocks_per_replica` blocks."""

    name: str
    arrivals: tuple[Arrival, ...]
    blocks_per_replica: int

    def unbounded_hit_ratio(self) -> float:
        """With one cache that never forgets and knows a prompt as soon as it has arrived: nothing can do better."""
        seen: set[int] = set()
        hit = total = 0
        for arrival in self.arrivals:
            reusable = (arrival.prompt_tokens - 1) // arrival.content_tokens
            depth = 0
            while depth < min(reusable, len(arrival.content)) and arrival.content[depth] in seen:
                depth += 1
            seen.update(arrival.content)
            hit += depth * arrival.content_tokens
            total += arrival.prompt_tokens
        return hit / total


def mooncake(folder: Path, requests: int) -> Workload:
    """The Mooncake conversation trace at its own pace; 400k tokens of cache per replica.

    Its clock ticks every 3 s. The requests of a tick are spread over it, else they would all arrive at one instant.
    """
    return Workload("mooncake", tuple(_trace(folder / "mooncake_conversation.jsonl", requests)), 12_500)


def _trace(path: Path, requests: int) -> Iterator[Arrival]:
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for _, line in zip(range(requests), lines, strict=False)]
    for tick_ms, group in groupby(rows, key=lambda row: row["timestamp"]):
        together = list(group)
        for number, row in enumerate(together):
            at_s = (tick_ms + _TRACE_TICK_MS * number / len(together)) / 1000
            output_tokens = max(1, row["output_length"])
            yield Arrival(at_s, row["input_length"], output_tokens, tuple(row["hash_ids"]), _TRACE_BLOCK)


def shared_prefix(requests: int, replicas: int, seed: int = 0) -> Workload:
    """150 prefixes of 6k tokens, each request with 1.2k tokens of its own. The prefixes fill 73 % of all caches."""
    prefixes, prefix_blocks, own_blocks = 150, 6016 // BLOCK_SIZE, 1216 // BLOCK_SIZE
    rng = random.Random(seed)
    at_s, fresh = 0.0, prefixes * prefix_blocks
    arrivals = []
    for _ in range(requests):
        at_s += rng.expovariate(14.0)
        first = rng.randrange(prefixes) * prefix_blocks
        content = (*range(first, first + prefix_blocks), *range(fresh, fresh + own_blocks))
        fresh += own_blocks
        arrivals.append(Arrival(at_s, len(content) * BLOCK_SIZE, 250, content, BLOCK_SIZE))
    blocks_per_replica = round(prefixes * prefix_blocks / 0.73 / replicas)
    return Workload("shared prefix", tuple(arrivals), blocks_per_replica)
