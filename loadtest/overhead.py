"""What a serving layer adds to its engine: short streamed chats at rising concurrency, and who used the CPU.

`python -m loadtest.overhead --host URL` measures a running server; `--plan FILE` starts each of the plan's stacks in
turn, `--rounds` times, the last one being what the others are compared with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import click
import uvloop
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from loadtest.benchmark import EXIT_UNUSABLE
from loadtest.content import one_token_words
from loadtest.cpu import ProcessCpu, cpu_seconds, cpu_since
from loadtest.probe import ProbeError, served_model
from loadtest.records import Outcome, PlannedRequest, RequestRecord, TrafficClass
from loadtest.report import milliseconds, table, write_json
from loadtest.runner import ClosedLoop, LoadRun, run_closed_loop
from loadtest.stacks import StackConfig, running_stack
from loadtest.streaming import StreamingClient, Target
from loadtest.summary import Quantiles, span_of
from loadtest.workloads import CHAT_ENDPOINT, encode_body

PROMPT_WORDS = 24
OUTPUT_TOKENS = 32
CONCURRENCIES = (1, 8, 32, 128)


@dataclass(frozen=True)
class Level:
    """One concurrency: tokens and CPU over `span_s`, latencies of the answered requests."""

    concurrency: int
    requests: int
    failed: int
    span_s: float
    tokens_per_s: float
    ttft_s: Quantiles
    itl_s: Quantiles
    cpu: tuple[ProcessCpu, ...]

    @property
    def cpu_per_request_s(self) -> float:
        """Of all processes of the machine, the load generator's among them."""
        return sum(process.cpu_s for process in self.cpu) / max(1, self.requests - self.failed)


class OverheadPlan(BaseModel):
    """Stacks to measure; ratios are to the last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stacks: list[StackConfig] = Field(min_length=1)


def chats(model: str, user: int) -> Iterator[PlannedRequest]:
    """Chats of one user, no two with the same first words."""
    for number in count():
        key = f"{user}/{number}"
        content = {"messages": [{"role": "user", "content": one_token_words(key, PROMPT_WORDS).strip()}]}
        body = encode_body(model, content, OUTPUT_TOKENS, exact_outputs=True)
        yield PlannedRequest(key, TrafficClass.CHAT, CHAT_ENDPOINT, body)


async def measure_level(target: Target, model: str, concurrency: int, requests: int, limit_s: float) -> Level:
    """`requests` chats by `concurrency` users; no new ones after `limit_s`. Each user's first is not counted."""
    users = [chats(model, user) for user in range(concurrency)]
    async with StreamingClient(target) as client:
        first = LoadRun(duration_s=60.0, drain_s=60.0)
        await run_closed_loop(client, ClosedLoop(users, concurrency, max_requests=concurrency), first)
        run = LoadRun(limit_s, drain_s=60.0)
        before = cpu_seconds()
        await run_closed_loop(client, ClosedLoop(users, concurrency, max_requests=requests), run)
        cpu = cpu_since(before)
    return level_of(concurrency, run.records, tuple(cpu))


def level_of(concurrency: int, records: Sequence[RequestRecord], cpu: tuple[ProcessCpu, ...]) -> Level:
    answered = [record for record in records if record.outcome is Outcome.OK]
    span_s = max(1e-9, span_of(answered, 0.0))
    return Level(
        concurrency=concurrency,
        requests=len(records),
        failed=len(records) - len(answered),
        span_s=span_s,
        tokens_per_s=sum(record.output_tokens for record in answered) / span_s,
        ttft_s=Quantiles.of(record.ttft_s for record in answered if record.ttft_s is not None),
        itl_s=Quantiles.of(gap for record in answered for gap in record.itl_s),
        cpu=cpu,
    )


async def measure_levels(
    target: Target, model: str, concurrencies: Sequence[int], per_user: int, limit_s: float
) -> list[Level]:
    levels = []
    for concurrency in concurrencies:
        levels.append(await measure_level(target, model, concurrency, max(32, concurrency * per_user), limit_s))
        await asyncio.sleep(0.5)  # the server finishes what the level left
    return levels


def print_levels(console: Console, name: str, levels: Sequence[Level]) -> None:
    columns = ("users", "requests", "failed", "tokens/s", "TTFT ms p50/p99", "ITL ms p50/p99", "CPU s")
    rows = [
        [
            str(level.concurrency),
            str(level.requests),
            str(level.failed),
            f"{level.tokens_per_s:,.0f}",
            f"{milliseconds(level.ttft_s.p50)}/{milliseconds(level.ttft_s.p99)}",
            f"{milliseconds(level.itl_s.p50)}/{milliseconds(level.itl_s.p99)}",
            f"{sum(process.cpu_s for process in level.cpu):.1f} in {level.span_s:.1f}",
        ]
        for level in levels
    ]
    console.print(f"[bold]{name}[/]", highlight=False)
    console.print(table(columns, rows))
    for level in levels:
        busiest = ", ".join(f"{process.name} {process.cpu_s:.2f}" for process in level.cpu[:8])
        console.print(f"  CPU seconds at {level.concurrency}: {busiest}", highlight=False)


def print_ratios(console: Console, rounds: dict[str, list[list[Level]]]) -> None:
    """Medians over the rounds, against the last stack."""
    *others, base = rounds
    rows = []
    for name in others:
        for index, level in enumerate(rounds[name][0]):
            pairs = [(ours[index], theirs[index]) for ours, theirs in zip(rounds[name], rounds[base], strict=True)]
            throughput = median(ours.tokens_per_s / max(1e-9, theirs.tokens_per_s) for ours, theirs in pairs)
            added = [
                o.ttft_s.p50 - t.ttft_s.p50 for o, t in pairs if o.ttft_s.p50 is not None and t.ttft_s.p50 is not None
            ]
            added_ms = f"{median(added) * 1000:+.1f}" if added else "-"
            cpu = median(ours.cpu_per_request_s / max(1e-9, theirs.cpu_per_request_s) for ours, theirs in pairs)
            rows.append([name, str(level.concurrency), f"{throughput:.2f}", added_ms, f"{cpu:.3f}"])
    if rows:
        columns = ("stack", "users", f"tokens/s over {base}", "added TTFT p50, ms", "CPU per request over it")
        console.print(table(columns, rows))


def measure_stacks(
    plan: OverheadPlan, rounds: int, settings: tuple[Sequence[int], int, float], out: Path, console: Console
) -> dict[str, list[list[Level]]]:
    measured: dict[str, list[list[Level]]] = {stack.name: [] for stack in plan.stacks}
    for number in range(rounds):
        for stack in plan.stacks:
            with running_stack(stack, out / f"{stack.name}.log") as served:
                levels = uvloop.run(measure_levels(stack.target, served.name, *settings))
            print_levels(console, f"{stack.name}, round {number + 1}", levels)
            measured[stack.name].append(levels)
    return measured


@click.command(help=__doc__)
@click.option("--host", default="http://127.0.0.1:8000", show_default=True)
@click.option("--plan", "plan_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="With --plan.")
@click.option("--concurrency", "concurrencies", type=int, multiple=True, default=CONCURRENCIES, show_default=True)
@click.option("--per-user", type=click.IntRange(min=1), default=16, show_default=True, help="Chats of each user.")
@click.option("--limit", "limit_s", type=float, default=20, show_default=True, help="Seconds per concurrency.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/overhead"), show_default=True)
def main(host: str, plan_file: Path | None, rounds: int, out: Path, **settings: Any) -> None:
    console = Console()
    chosen = (settings["concurrencies"], settings["per_user"], settings["limit_s"])
    try:
        if plan_file is None:
            target = Target(host)
            model = served_model(target).name
            measured = {host: [uvloop.run(measure_levels(target, model, *chosen))]}
            print_levels(console, host, measured[host][0])
        else:
            plan = OverheadPlan.model_validate(yaml.safe_load(plan_file.read_text(encoding="utf-8")))
            measured = measure_stacks(plan, rounds, chosen, out, console)
            print_ratios(console, measured)
    except (ProbeError, ValidationError, yaml.YAMLError) as error:
        console.print(f"[bold red]cannot measure[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    result = {name: [[asdict(level) for level in levels] for levels in of_stack] for name, of_stack in measured.items()}
    write_json(out / "overhead.json", result)


if __name__ == "__main__":
    main()
