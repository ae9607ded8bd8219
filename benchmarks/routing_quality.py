"""How well requests are routed: `python -m benchmarks.routing_quality --traces FOLDER`.

Eight modelled engines serve the same arrivals under each policy. KVPulse sees their caches and loads as its feed would
show them, 0.1 to 0.2 s late; the oracle sees them as they are.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.config.schema import RoutingConfig
from benchmarks.engine_model import EngineSpeed, SimulatedEngine
from benchmarks.policies import Clock, KVPulse, LeastLoaded, Oracle, Policy, RoundRobin, RoutedPrefixes
from benchmarks.simulation import Result, Simulation
from benchmarks.workloads import Workload, mooncake, shared_prefix

REPLICAS = 8


@dataclasses.dataclass(frozen=True)
class Contender:
    """A policy, and whether the engines report a prompt's blocks as soon as they have accepted the request."""

    build: Callable[[list[SimulatedEngine], Clock, random.Random], Policy]
    tells_queued: bool = False


def contenders(rules: RoutingConfig) -> Mapping[str, Contender]:
    """By name, in the order of the table. The oracle comes first: others are compared with it."""

    def kvpulse(routers: int) -> Callable[[list[SimulatedEngine], Clock, random.Random], Policy]:
        return lambda engines, clock, rng: KVPulse(len(engines), clock, rng, rules, routers)

    return {
        "oracle": Contender(lambda engines, _, rng: Oracle(engines, rng, rules)),
        "kvpulse": Contender(kvpulse(1), tells_queued=True),
        "kvpulse, 4 routers": Contender(kvpulse(4), tells_queued=True),
        "the same, told computed blocks only": Contender(kvpulse(4)),
        "routed prefixes": Contender(lambda engines, _, rng: RoutedPrefixes(engines, rng, float("inf"))),
        "routed prefixes, threshold 10": Contender(lambda engines, _, rng: RoutedPrefixes(engines, rng, 10)),
        "least loaded": Contender(lambda engines, _, rng: LeastLoaded(engines, rng)),
        "round robin": Contender(lambda engines, _, rng: RoundRobin(engines)),
    }


def simulate(
    workload: Workload, contender: Contender, seed: int, progress: Callable[[], None] = lambda: None
) -> Result:
    """One workload under one policy."""
    engines = [
        SimulatedEngine(workload.blocks_per_replica, EngineSpeed(), contender.tells_queued) for _ in range(REPLICAS)
    ]
    clock = Clock()
    policy = contender.build(engines, clock, random.Random(seed))
    return Simulation(engines, policy, clock).run(workload.arrivals, progress)


def _compare(workload: Workload, rules: RoutingConfig, seed: int, progress: Progress) -> dict[str, Result]:
    results = {}
    for name, contender in contenders(rules).items():
        task = progress.add_task(f"{workload.name}: {name}", total=len(workload.arrivals))
        results[name] = simulate(workload, contender, seed, lambda task=task: progress.advance(task))  # type: ignore[misc]  # mypy infers no lambda with defaults
        progress.remove_task(task)
    return results


def _table(workload: Workload, results: Mapping[str, Result], cpu_s: float) -> Table:
    table = Table(
        title=f"{workload.name}: {len(workload.arrivals):,} requests, {REPLICAS} replicas of "
        f"{workload.blocks_per_replica:,} blocks, {cpu_s:.0f} s of CPU\n"
        f"hit ratio of a single unbounded cache: {workload.unbounded_hit_ratio():.1%}"
    )
    table.add_column("policy")
    for column in ("hit ratio", "/ oracle", "max/mean load", "TTFT p50 s", "TTFT p95 s"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result.hit_ratio:.1%}",
            f"{result.hit_ratio / results['oracle'].hit_ratio:.1%}",
            f"{result.max_over_mean_load:.2f}",
            f"{result.ttft_p50_s:.2f}",
            f"{result.ttft_p95_s:.2f}",
        )
    return table


@click.command()
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), envvar="KVPULSE_TRACES",
              help="folder of mooncake_conversation.jsonl; without it only the synthetic workload runs")  # fmt: skip
@click.option("--requests", type=click.IntRange(min=100), default=6_000, show_default=True, help="per workload")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")
def main(traces: Path | None, requests: int, seed: int, as_json: bool) -> None:
    """Compare routing policies on modelled engines."""
    workloads = [shared_prefix(requests, REPLICAS, seed)]
    if traces is not None:
        workloads.append(mooncake(traces, requests))
    console = Console()
    report = {}
    for workload in workloads:
        began = time.process_time()
        with Progress(console=Console(stderr=True), transient=True) as progress:
            results = _compare(workload, RoutingConfig(), seed, progress)
        report[workload.name] = {name: dataclasses.asdict(result) for name, result in results.items()}
        if not as_json:
            console.print(_table(workload, results, time.process_time() - began))
    if as_json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
