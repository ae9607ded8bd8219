"""What telemetry costs in CPU seconds per request, of whole stacks.

Two stacks from one file run at the same time, one with telemetry (Ray's metrics port, an OTLP collector, traces as
sampled by default) and one without. Short blocks of the same streamed chats alternate between them, ABBA: what changes
the machine's speed for longer than a few seconds changes both. Counted is the CPU of each stack's own processes; the
load generator and the collector are in neither.

The interval is that of these two stacks. Two of the same configuration differ too: `--control` shows by how much.

Ends with 1 if the 95 % interval of the ratio lies above 1.02.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click
import uvloop
import yaml
from rich.console import Console
from rich.progress import track

from app.metrics import GENERATED_TOKENS, RAY_PREFIX
from loadtest.benchmark import EXIT_MISSED, EXIT_OK, EXIT_UNUSABLE
from loadtest.cpu import process_name, tree_cpu_seconds
from loadtest.isolation import free_port, isolated_ray
from loadtest.otlp_sink import OtlpSink, otlp_sink
from loadtest.overhead import OUTPUT_TOKENS, PROMPT_WORDS, chats
from loadtest.paired_cpu import (
    LIMIT,
    WHOLE,
    Block,
    Pair,
    Side,
    Verdict,
    cost_rows,
    costs_of,
    idle_ms_per_s,
    order,
    used_by_role,
    verdict_of,
)
from loadtest.probe import ProbeError
from loadtest.records import Outcome, PlannedRequest, RequestRecord
from loadtest.report import table, write_json
from loadtest.stacks import StackConfig, started_stack, wait_until_ready
from loadtest.streaming import StreamingClient, Target

SERVE = Path(sys.executable).with_name("serve")
READY_TIMEOUT_S = 300.0
SETTLE_S = 0.2  # what a block left to do counts as its own


@dataclass(frozen=True)
class Load:
    """A block: `users` who each send `per_user` chats, one after the other."""

    users: int
    per_user: int

    def of_block(self, model: str, number: int) -> list[list[PlannedRequest]]:
        """By user. The same for both stacks, and new to each of them."""
        first = number * self.per_user
        return [list(islice(chats(model, user), first, first + self.per_user)) for user in range(self.users)]


@dataclass
class Running:
    """A stack of this command. `folder` has its files."""

    config: StackConfig
    process: subprocess.Popen[bytes]
    folder: Path
    names: dict[int, str] = field(default_factory=dict)

    def cpu_s(self) -> dict[int, float]:
        """By pid, so far; learns the names of processes that are new."""
        seconds = tree_cpu_seconds(self.process.pid)
        self.names.update({pid: process_name(pid) for pid in seconds if pid not in self.names})
        return seconds


def stack_config(serve_config: Path, side: Side, telemetry: Mapping[str, Any], folder: Path) -> StackConfig:
    """The stack of `serve_config` with `telemetry`, on ports and with files of its own."""
    content = yaml.safe_load(serve_config.read_text(encoding="utf-8"))
    port = free_port()
    content["http_options"]["port"] = port
    content["applications"][0]["args"]["telemetry"] = dict(telemetry)
    written = folder / "serve_config.yaml"
    written.write_text(yaml.safe_dump(content), encoding="utf-8")
    return StackConfig(
        name=side,
        command=[str(SERVE), "run", str(written)],
        url=f"http://127.0.0.1:{port}",
        environment=isolated_ray(folder, place=list(Side).index(side)),
        ready_path="/ready",
        ready_timeout_s=READY_TIMEOUT_S,
    )


@contextmanager
def both_running(
    serve_config: Path, telemetry: Mapping[Side, Mapping[str, Any]], out: Path
) -> Iterator[tuple[dict[Side, Running], str]]:
    """Both stacks, ready, and the name of their model."""
    with ExitStack() as ends:
        stacks = {}
        for side in Side:
            folder = Path(tempfile.mkdtemp(prefix="kvp-"))
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
            config = stack_config(serve_config, side, telemetry[side], folder)
            process = ends.enter_context(started_stack(config, out / f"{side}.log"))
            stacks[side] = Running(config, process, folder)
        served = [wait_until_ready(stack.config, stack.process) for stack in stacks.values()]
        yield stacks, served[0].name


async def send_all(target: Target, users: list[list[PlannedRequest]]) -> None:
    """Raises ProbeError when a request is not answered: blocks must hold the same work."""

    async def user(client: StreamingClient, requests: list[PlannedRequest]) -> None:
        for planned in requests:
            record = RequestRecord(planned.key, planned.traffic_class, 0.0)
            await client.send(planned, record, time.perf_counter())
            if record.outcome is not Outcome.OK:
                raise ProbeError(f"{target.url}: a request ended {record.outcome} ({record.reason})")

    async with StreamingClient(target) as client:
        await asyncio.gather(*(user(client, requests) for requests in users))


def run_block(loaded: Running, idle: Running, users: list[list[PlannedRequest]]) -> Block:
    began, before, idle_before = time.perf_counter(), loaded.cpu_s(), idle.cpu_s()
    uvloop.run(send_all(loaded.config.target, users))
    time.sleep(SETTLE_S)
    now, idle_now, span_s = loaded.cpu_s(), idle.cpu_s(), time.perf_counter() - began
    return Block(
        sum(map(len, users)),
        span_s,
        used_by_role(before, now, loaded.names),
        used_by_role(idle_before, idle_now, idle.names),
    )


def run_pairs(
    stacks: Mapping[Side, Running], model: str, load: Load, pairs: int, warmup: int, console: Console
) -> list[Pair]:
    """The measured pairs; `warmup` more come before them."""
    measured: list[Pair] = []
    for number in track(range(warmup + pairs), "blocks of both stacks", console=console):
        users = load.of_block(model, number)
        measured.append({side: run_block(stacks[side], stacks[side.other], users) for side in order(number)})
    return measured[warmup:]


def on_ray_port(stack: Running) -> bool:
    """Whether the node's metrics port has our metrics."""
    listed = json.loads((stack.folder / "ray" / "prom_metrics_service_discovery.json").read_text(encoding="utf-8"))
    pages = []
    for address in [address for group in listed for address in group["targets"]]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            pages.append(answer.read().decode())
    return any(RAY_PREFIX + GENERATED_TOKENS.name in page for page in pages)


def check_telemetry(stacks: Mapping[Side, Running], sink: OtlpSink, control: bool) -> None:
    """Raises ProbeError when a stack has not measured itself as it was told to."""
    expected = {Side.ON: not control, Side.OFF: False}
    if (sink.exports["/v1/metrics"] > 0) != expected[Side.ON]:
        raise ProbeError(f"the collector got {dict(sink.exports)}")
    for side, stack in stacks.items():
        if on_ray_port(stack) != expected[side]:
            raise ProbeError(f"stack {side}: Ray's metrics port has {'no' if expected[side] else 'our'} metrics")


def print_result(console: Console, pairs: list[Pair], load: Load, exports: Mapping[str, int]) -> Verdict:
    costs = costs_of(pairs)
    seconds = [pair[side].span_s for pair in pairs for side in Side]
    requests = load.users * load.per_user
    console.print(
        f"{len(pairs)} pairs of blocks of {sum(seconds) / len(seconds):.1f} s: {requests} chats by {load.users} users, "
        f"{PROMPT_WORDS} words in and {OUTPUT_TOKENS} tokens out",
        highlight=False,
    )
    console.print(table(("CPU ms per request", "on", "off", "ratio", "95 % interval", "of all"), cost_rows(costs)))
    idle = ", ".join(f"{side} {idle_ms_per_s(pairs, side):.1f}" for side in Side)
    console.print(f"idle, CPU ms per second: {idle}; the collector got {dict(exports)}", highlight=False)
    verdict = verdict_of(next(cost.ratio for cost in costs if cost.name == WHOLE))
    console.print(f"[bold]{verdict}[/] ({LIMIT})", highlight=False)
    return verdict


@click.command(help=__doc__)
@click.argument(
    "serve_config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=Path("loadtest/plans/serve_tiny.yaml"),
)
@click.option("--pairs", default=24, show_default=True, type=click.IntRange(min=2))
@click.option("--warmup", default=2, show_default=True, type=click.IntRange(min=0), help="Pairs that do not count.")
@click.option("--users", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--per-user", default=13, show_default=True, type=click.IntRange(min=1), help="Chats in one block.")
@click.option("--control", is_flag=True, help="Both without telemetry: what two stacks differ by anyway.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/telemetry"), show_default=True)
def main(serve_config: Path, pairs: int, warmup: int, users: int, per_user: int, control: bool, out: Path) -> None:
    console = Console()
    load = Load(users, per_user)
    try:
        with otlp_sink() as sink:
            off = {"enabled": False}
            telemetry = {Side.ON: off if control else {"enabled": True, "otlp_endpoint": sink.url}, Side.OFF: off}
            with both_running(serve_config, telemetry, out) as (stacks, model):
                measured = run_pairs(stacks, model, load, pairs, warmup, console)
                check_telemetry(stacks, sink, control)
                names = {side: sorted(set(stack.names.values())) for side, stack in stacks.items()}
    except ProbeError as error:
        console.print(f"[bold red]cannot measure[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    verdict = print_result(console, measured, load, sink.exports)
    write_json(
        out / "telemetry_cost.json",
        {
            "load": asdict(load),
            "control": control,
            "verdict": verdict,
            "costs": [asdict(cost) for cost in costs_of(measured)],
            "pairs": [{side: asdict(block) for side, block in pair.items()} for pair in measured],
            "exports": sink.exports,
            "processes": names,
        },
    )
    raise SystemExit(EXIT_MISSED if verdict is Verdict.BEYOND else EXIT_OK)


if __name__ == "__main__":
    main()
