"""`python -m benchmarks.admission_speed`: what classifying and admitting one request costs the ingress.

One request = its prompt counted in the sketch of frequent prefixes, its session recalled and remembered, its key's
quota charged and settled, classification, admission and release; engines are pressed, queues are in use, and the state
is as full as its bounds allow. Hashing the prompt is reported beside it: routing needs the hashes as well.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import TypeVar

from app.config.admission import AdmissionConfig
from app.config.keys import Quota
from app.config.schema import RoutingConfig
from app.decisions.admission import Ask, Guard
from app.decisions.classifier import classify
from app.requests import Outcome, RequestFeatures, RequestPath
from app.state.chain_hashes import ChainHasher
from app.state.heavy_hitters import HeavyHitters
from app.state.pressure import ReplicaReading
from app.state.pulse import ReplicaLoad
from app.state.quotas import Quotas
from app.state.sessions import Session, Sessions

PROMPT_TOKENS, BLOCK_SIZE, CHUNK_TOKENS, SHARED_TOKENS = 4096, 32, 512, 1024
CONTEXT = {RequestPath.HOT: 32_768, RequestPath.COLD: 32_768}
T = TypeVar("T")
RULES, QUOTA = RoutingConfig(), Quota(10**9, 10**12, 10**6)
PATHS = (RequestPath.HOT, RequestPath.COLD)


class Door:
    """Everything between a rendered request and its dispatch.

    Args:
        replicas: of each path.
        waiting: requests that wait for each path's engines all the while.
    """

    def __init__(self, replicas: int, waiting: int) -> None:
        self.rng = Random(1)
        self.hasher = ChainHasher(b"benchmark", BLOCK_SIZE)
        rules, clock = AdmissionConfig(), time.monotonic
        self.hitters = HeavyHitters(rules.heavy_hitters, clock)
        self.sessions = Sessions(rules.sessions, clock)
        self.quotas = Quotas(clock)
        sizes, chunks = dict.fromkeys(PATHS, BLOCK_SIZE), dict.fromkeys(PATHS, CHUNK_TOKENS)
        self.guard = Guard(rules, sizes, chunks, stale_after_s=1e9, clock=clock)
        self.replicas = replicas
        self.numbers = count()
        self.observe(slots=waiting)
        for path in PATHS:
            for _ in range(2 * waiting):
                self.guard.admit(Ask(RequestFeatures(100, 10), path, path.priority(), may_move=False))

    def observe(self, slots: int) -> None:
        for engines in PATHS:
            readings = [
                ReplicaReading(f"{engines}-{number}", ReplicaLoad(kv_blocks=10_000, kv_usage_ratio=0.8), 0.1)
                for number in range(self.replicas)
            ]
            self.guard.observe(engines, readings, slots)

    def prompt(self) -> list[int]:
        own = (self.rng.randrange(32_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS))
        return [*range(SHARED_TOKENS), *own]

    def pass_through(self, hashes: list[int]) -> None:
        label = f"session-{next(self.numbers)}"
        heavy = self.hitters.see(hashes) * BLOCK_SIZE
        features = RequestFeatures(PROMPT_TOKENS, 256, cached_tokens=SHARED_TOKENS, heavy_prefix_tokens=heavy)
        found = classify(features, RULES, CONTEXT, self.sessions.recall("ide", label))
        charge = self.quotas.charge("ide", QUOTA, PROMPT_TOKENS + 256)
        admission = self.guard.admit(Ask(features, found.path, found.priority))
        self.sessions.remember("ide", label, Session(found.path, found.priority))
        if admission.reservation is not None:
            admission.reservation.release(Outcome.ANSWERED)
        charge.settle(PROMPT_TOKENS + 100)


def timed(action: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the microseconds it took."""
    begun = time.perf_counter_ns()
    result = action()
    return result, (time.perf_counter_ns() - begun) / 1000


def quantiles(samples_us: list[float]) -> dict[str, float]:
    ordered = sorted(samples_us)
    return {name: ordered[int(len(ordered) * part)] for name, part in (("p50_us", 0.5), ("p99_us", 0.99))}


def measure(replicas: int, requests: int) -> dict[str, object]:
    door = Door(replicas, waiting=100)
    for _ in range(requests // 10):
        door.pass_through(door.hasher.prompt(door.prompt()))
    hashing, passing, observing = [], [], []
    for number in range(requests):
        hashes, hash_us = timed(partial(door.hasher.prompt, door.prompt()))
        hashing.append(hash_us)
        passing.append(timed(partial(door.pass_through, hashes))[1])
        if number % 20 == 0:
            observing.append(timed(partial(door.observe, slots=100))[1])
    return {
        "replicas_per_path": replicas,
        "classify_and_admit": quantiles(passing),
        "hash_prompt": quantiles(hashing),
        "observe_both_paths": quantiles(observing),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(replicas, options.requests) for replicas in (1, 10, 100)]
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"one request of {PROMPT_TOKENS} tokens, p50 / p99 in microseconds")
    for result in results:
        figures = ", ".join(
            f"{name} {value['p50_us']:.0f} / {value['p99_us']:.0f}"
            for name, value in result.items()
            if isinstance(value, dict)
        )
        print(f"{result['replicas_per_path']:>4} replicas per path: {figures}")


if __name__ == "__main__":
    main()
