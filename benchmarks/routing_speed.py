"""How long a routing decision takes and what the index weighs: `python -m benchmarks.routing_speed`."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from statistics import quantiles

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from app.config.schema import RoutingConfig
from app.decisions.routing import RoutingRequest, route
from app.state.chain_hashes import HASH_BITS, ChainHasher
from app.state.cluster_view import ClusterView
from app.state.prefix_index import PrefixIndex
from app.state.pulse import ReplicaLoad

BLOCK_SIZE = 32
PROMPT_TOKENS = 4096
SYSTEM_BLOCKS = 8  # every prompt begins with them and every replica holds them
DECISIONS = 5000
BOUND = 200_000
UNIQUE_PREFIXES = 1_000_000
RULES = RoutingConfig()


def _fleet(replicas: int, rng: random.Random) -> tuple[ClusterView, list[list[int]]]:
    """Every replica holds the system prompt and parts of 20 of 500 prompts; a tenth of the prompts is nowhere."""
    view = ClusterView(time.monotonic, stale_after_s=3600.0)
    view.keep_only([f"replica-{number:04}" for number in range(replicas)])
    system = [rng.getrandbits(HASH_BITS) for _ in range(SYSTEM_BLOCKS)]
    own_blocks = PROMPT_TOKENS // BLOCK_SIZE - SYSTEM_BLOCKS
    prompts = [system + [rng.getrandbits(HASH_BITS) for _ in range(own_blocks)] for _ in range(500)]
    for standing in view.standings():
        held = [block for prompt in rng.sample(prompts[:450], 20) for block in prompt[: rng.randint(8, 128)]]
        load = ReplicaLoad(
            queued_prefill_tokens=rng.randint(0, 4000),
            decode_tokens=rng.randint(0, 100_000),
            kv_usage_ratio=rng.uniform(0.2, 0.9),
        )
        view.replace(standing.replica_id, held, load)
    return view, prompts


def _microseconds(call: Callable[[], object]) -> dict[str, float]:
    took = []
    for _ in range(DECISIONS):
        began = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began) / 1000)
    cuts = quantiles(took, n=100)
    return {"p50_us": round(cuts[49], 1), "p99_us": round(cuts[98], 1)}


def decision_times(replicas: int) -> dict[str, float]:
    rng = random.Random(replicas)
    view, prompts = _fleet(replicas, rng)
    return _microseconds(
        lambda: route(RoutingRequest(PROMPT_TOKENS, rng.choice(prompts), BLOCK_SIZE), view, RULES, rng)
    )


def hashing_times() -> dict[str, float]:
    hasher = ChainHasher(b"benchmark", BLOCK_SIZE)
    tokens = [random.Random(1).randrange(50_000) for _ in range(PROMPT_TOKENS)]
    return _microseconds(lambda: hasher.prompt(tokens))


def bytes_per_held_block(replicas: int, blocks: int = 100_000) -> float:
    """Bytes per (block, replica), when every replica holds every block."""
    rng = random.Random(1)
    tracemalloc.start()
    index = PrefixIndex(2 * blocks)
    hashes = [rng.getrandbits(HASH_BITS) for _ in range(blocks)]
    for number in range(replicas):
        index.add(str(number), hashes)
    del hashes  # the keys stay
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / (blocks * replicas)


def memory_of_a_bounded_index() -> dict[str, object]:
    """MB held each time as many prefixes as the bound have gone in, and how many were forgotten."""
    rng = random.Random(1)
    tracemalloc.start()
    index = PrefixIndex(BOUND)
    held = []
    for _ in track(range(UNIQUE_PREFIXES // BOUND), "a million prefixes", console=Console(stderr=True), transient=True):
        for _ in range(BOUND):
            index.add("replica", [rng.getrandbits(HASH_BITS)])
        held.append(round(tracemalloc.get_traced_memory()[0] / 1e6, 1))
    tracemalloc.stop()
    return {"held_mb": held, "evicted_blocks": index.evicted_blocks}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")
def main(as_json: bool) -> None:
    """Measure a decision, hashing and the index's memory."""
    times = {f"{replicas:,} replicas": decision_times(replicas) for replicas in (10, 100, 1000)}
    times["hashing the prompt, for comparison"] = hashing_times()
    memory = {f"{replicas} replicas": round(bytes_per_held_block(replicas), 1) for replicas in (1, 8)}
    bounded = memory_of_a_bounded_index()
    if as_json:
        print(json.dumps({"decision": times, "bytes_per_block_and_replica": memory, "bounded": bounded}, indent=2))
        return
    table = Table("decision", "p50 us", "p99 us", title=f"{PROMPT_TOKENS:,} tokens in blocks of {BLOCK_SIZE}")
    for name, row in times.items():
        table.add_row(name, *(f"{value:.1f}" for value in row.values()))
    console = Console()
    console.print(table)
    console.print(f"bytes per (block, replica), every replica holding every block: {memory}")
    console.print(f"{UNIQUE_PREFIXES:,} unique prefixes through an index of {BOUND:,} blocks: {bounded}")


if __name__ == "__main__":
    main()
