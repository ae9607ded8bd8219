"""What the first minute on a new engine replica is like: requests with shared prefixes, before and after the only hot
replica is killed and its successor answers.

`python -m loadtest.newcomer loadtest/plans/newcomer.yaml` does it for each stack of the plan.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import click
import psutil
import uvloop
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from loadtest.benchmark import EXIT_UNUSABLE
from loadtest.content import one_token_words
from loadtest.probe import ProbeError
from loadtest.records import Outcome, PlannedRequest, RequestRecord, TrafficClass
from loadtest.report import milliseconds, percent, table, write_json
from loadtest.stacks import StackConfig, running_stack
from loadtest.streaming import StreamingClient, Target
from loadtest.summary import Quantiles
from loadtest.workloads import encode_body

ENDPOINT = "/v1/completions"
RETRY_S = 0.2
RETURN_TIMEOUT_S = 600.0


class NewcomerPlan(BaseModel):
    """Stacks to measure, each with one replica whose process has `replica` in its name.

    Args:
        prefixes: shared beginnings; request n has the prefix n modulo this.
        warm_s: load before the replica is killed.
        measured_s: and after its successor has answered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stacks: list[StackConfig] = Field(min_length=1)
    replica: str
    prefixes: int = Field(6, ge=1)
    prefix_tokens: int = Field(600, ge=1)
    own_tokens: int = Field(40, ge=1)
    output_tokens: int = Field(8, ge=1)
    users: int = Field(2, ge=1)
    warm_s: float = Field(60.0, gt=0)
    measured_s: float = Field(60.0, gt=0)


@dataclass(frozen=True)
class Phase:
    """`first_s` is the TTFT of the first request of each prefix; `cached_ratio` is of all prompt tokens."""

    name: str
    requests: int
    ttft_s: Quantiles
    first_s: tuple[float | None, ...]
    cached_ratio: float


def request_of(plan: NewcomerPlan, model: str, number: int) -> PlannedRequest:
    prefix = one_token_words(f"prefix {number % plan.prefixes}", plan.prefix_tokens)
    content = {"prompt": prefix + one_token_words(f"own {number}", plan.own_tokens)}
    body = encode_body(model, content, plan.output_tokens, exact_outputs=True)
    return PlannedRequest(str(number), TrafficClass.TRACE, ENDPOINT, body)


async def load(
    plan: NewcomerPlan, target: Target, model: str, numbers: count[int], seconds: float
) -> list[RequestRecord]:
    """Each user sends one request after the other."""
    began = time.perf_counter()
    records: list[RequestRecord] = []

    async def user(client: StreamingClient) -> None:
        while (now := time.perf_counter()) - began < seconds:
            planned = request_of(plan, model, next(numbers))
            record = RequestRecord(planned.key, planned.traffic_class, now - began)
            records.append(await client.send(planned, record, now))

    async with StreamingClient(target) as client:
        await asyncio.gather(*(user(client) for _ in range(plan.users)))
    return records


async def wait_for_successor(target: Target, model: str) -> None:
    """Until a request that shares nothing with the others is answered."""
    planned = PlannedRequest("ready", TrafficClass.TRACE, ENDPOINT, encode_body(model, {"prompt": "ready"}, 1, True))
    deadline = time.perf_counter() + RETURN_TIMEOUT_S
    async with StreamingClient(target, timeout_s=60) as client:
        while (now := time.perf_counter()) < deadline:
            record = await client.send(planned, RequestRecord("ready", TrafficClass.TRACE, 0.0), now)
            if record.outcome is Outcome.OK:
                return
            await asyncio.sleep(RETRY_S)
    raise ProbeError(f"no successor answered within {RETURN_TIMEOUT_S:g} s")


def kill_replica(name: str) -> None:
    """Of the stack that this process has started."""
    for process in psutil.Process().children(recursive=True):
        if name in " ".join(process.cmdline()):
            process.kill()
            return
    raise ProbeError(f"no process of this stack has {name!r} in its name")


def phase_of(name: str, plan: NewcomerPlan, records: list[RequestRecord]) -> Phase:
    answered = [record for record in records if record.outcome is Outcome.OK and record.ttft_s is not None]
    if not answered:
        raise ProbeError(f"{name}: no request was answered")
    first = {int(record.key) % plan.prefixes: record.ttft_s for record in reversed(answered)}
    return Phase(
        name,
        len(answered),
        Quantiles.of(record.ttft_s or 0.0 for record in answered),
        tuple(first.get(prefix) for prefix in range(plan.prefixes)),
        sum(record.cached_tokens for record in answered) / sum(record.prompt_tokens for record in answered),
    )


async def measure(plan: NewcomerPlan, target: Target, model: str) -> list[Phase]:
    numbers = count()
    before = await load(plan, target, model, numbers, plan.warm_s)
    kill_replica(plan.replica)
    await wait_for_successor(target, model)
    after = await load(plan, target, model, numbers, plan.measured_s)
    return [phase_of("before", plan, before), phase_of("first minute", plan, after)]


def print_phases(console: Console, name: str, phases: list[Phase]) -> None:
    columns = ("phase", "requests", "TTFT p50 ms", "p95", "mean of first per prefix", "cached")
    rows = []
    for phase in phases:
        first = [value for value in phase.first_s if value is not None]
        cells = (phase.ttft_s.p50, phase.ttft_s.p95, sum(first) / len(first))
        rows.append([phase.name, str(phase.requests), *map(milliseconds, cells), percent(phase.cached_ratio)])
    console.print(f"[bold]{name}[/]", highlight=False)
    console.print(table(columns, rows))


@click.command(help=__doc__)
@click.argument("plan_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/newcomer"), show_default=True)
def main(plan_file: Path, out: Path) -> None:
    console = Console()
    measured: dict[str, Any] = {}
    try:
        plan = NewcomerPlan.model_validate(yaml.safe_load(plan_file.read_text(encoding="utf-8")))
        for stack in plan.stacks:
            with running_stack(stack, out / f"{stack.name}.log") as served:
                phases = uvloop.run(measure(plan, stack.target, served.name))
            print_phases(console, stack.name, phases)
            measured[stack.name] = [asdict(phase) for phase in phases]
    except (ProbeError, ValidationError, yaml.YAMLError) as error:
        console.print(f"[bold red]cannot measure[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    write_json(out / "newcomer.json", measured)


if __name__ == "__main__":
    main()
