"""Compares two servers: the same schedule, in alternating blocks, one stack running at a time.

`python -m loadtest.compare loadtest/plans/mixed.yaml` starts each stack, warms it, measures it, stops it, and prints
the ratios `first / second` with their 95 % intervals. Refused and failed requests count in goodput and are listed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import uvloop
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from loadtest.benchmark import EXIT_MISSED, EXIT_OK, EXIT_UNUSABLE, Measured, Timing, measure
from loadtest.bootstrap import Metric, PairedBlock, Ratio, ratio_of
from loadtest.options import parse_objective
from loadtest.probe import ProbeError, ServedModel, measure_tokenizer
from loadtest.records import Objective, Outcome, RequestRecord, TrafficClass
from loadtest.report import as_json, print_summary, records_json, table, write_json
from loadtest.schedule import SlotPool, open_loop
from loadtest.shapes import SHAPES, arrival_times
from loadtest.stacks import StackConfig, running_stack
from loadtest.summary import Objectives, quantile, span_of, summarise, tokens_until
from loadtest.workloads import DEFAULT_PROFILES, WorkloadConfig, with_weights

MetricName = Literal[
    "ttft_p50_s", "ttft_p95_s", "itl_p50_s", "itl_p95_s", "e2e_p50_s", "e2e_p95_s", "tokens_in_window", "good"
]


class Requirement(BaseModel):
    """What a ratio must keep to; `traffic` is a class or `all`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    traffic: str
    metric: MetricName
    at_most: float | None = None
    at_least: float | None = None

    def broken_by(self, ratio: Ratio) -> str | None:
        """The sentence that says so, or None."""
        limits = [f"at most {self.at_most:g}"] if self.at_most is not None else []
        limits += [f"at least {self.at_least:g}"] if self.at_least is not None else []
        kept = ratio.value is not None and (
            (self.at_most is None or ratio.value <= self.at_most)
            and (self.at_least is None or ratio.value >= self.at_least)
        )
        value = "not measurable" if ratio.value is None else f"{ratio.value:.3f}"
        return None if kept else f"{self.traffic} {self.metric}: {value}, wanted {' and '.join(limits)}"


class Plan(BaseModel):
    """A comparison: two stacks and the open-loop load that both get. Rates are per second, `pairs` of blocks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stacks: Annotated[list[StackConfig], Field(min_length=2, max_length=2)]
    context_tokens: Annotated[int, Field(ge=128)]
    rates_per_s: dict[TrafficClass, Annotated[float, Field(gt=0)]]
    sessions: dict[TrafficClass, Annotated[int, Field(ge=1)]]
    objectives: list[str] = []
    duration_s: float = Field(60.0, gt=0)
    drain_s: float = Field(120.0, ge=0)
    timeout_s: float = Field(300.0, gt=0)
    pairs: int = Field(2, ge=1)
    warmup: bool = True
    seed: int = 0
    shape: Literal["constant", "step", "spike", "day"] = "constant"
    gap_variation: float = Field(1.0, gt=0)
    prompt_scale: float = Field(1.0, gt=0)
    output_scale: float = Field(1.0, gt=0)
    require: list[Requirement] = []


def read_plan(path: Path) -> Plan:
    """Raises ProbeError with what is wrong in the file."""
    try:
        return Plan.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise ProbeError(f"{path}: {error}") from error


def objectives_of(plan: Plan) -> dict[TrafficClass, Objective]:
    result = {name: profile.objective for name, profile in DEFAULT_PROFILES.items()}
    for text in plan.objectives:
        name, objective = parse_objective(text, result)
        result[name] = objective
    return result


def _quantile_of(field: str, share: float) -> Metric:
    def measure_it(records: Sequence[RequestRecord]) -> float | None:
        answered = [record for record in records if record.outcome is Outcome.OK]
        values = [value for record in answered if (value := getattr(record, field)) is not None]
        return quantile(values, share)

    return measure_it


def _gap_quantile(share: float) -> Metric:
    return lambda records: quantile([gap for r in records if r.outcome is Outcome.OK for gap in r.itl_s], share)


def metrics_of(objectives: Objectives, duration_s: float) -> dict[MetricName, Metric]:
    """Latencies of answered requests; tokens that arrived while requests were sent; good requests of all offered."""
    return {
        "ttft_p50_s": _quantile_of("ttft_s", 0.5),
        "ttft_p95_s": _quantile_of("ttft_s", 0.95),
        "itl_p50_s": _gap_quantile(0.5),
        "itl_p95_s": _gap_quantile(0.95),
        "e2e_p50_s": _quantile_of("e2e_s", 0.5),
        "e2e_p95_s": _quantile_of("e2e_s", 0.95),
        "tokens_in_window": lambda records: sum(tokens_until(record, duration_s) for record in records),
        "good": lambda records: sum(r.meets(objectives.get(r.traffic_class, Objective())) for r in records),
    }


async def run_block(plan: Plan, workload: WorkloadConfig, stack: StackConfig, console: Console) -> Measured:
    """One stack under the workload's schedule."""
    pool = SlotPool(workload, plan.sessions)
    warmup = pool.warmup() if plan.warmup else []
    rng = random.Random(f"{workload.seed}/arrivals")  # noqa: S311 - load, not secrets
    rate = sum(plan.rates_per_s.values())
    arrivals = arrival_times(rng, rate, plan.duration_s, SHAPES[plan.shape], plan.gap_variation)
    schedule = open_loop(pool, arrivals, rng)
    return await measure(stack.target, schedule, Timing(plan.duration_s, plan.drain_s, plan.timeout_s), warmup, console)


def run_comparison(plan: Plan, out: Path, console: Console) -> list[tuple[Measured, Measured]]:
    """The blocks of all pairs; who goes first alternates, so that a drift of the machine falls on both."""
    pairs = []
    tokenizer = None
    for number in range(plan.pairs):
        blocks: dict[str, Measured] = {}
        for stack in plan.stacks if number % 2 == 0 else reversed(plan.stacks):
            console.print(f"pair {number + 1} of {plan.pairs}: starting {stack.name}", highlight=False)
            with running_stack(stack, out / f"{stack.name}.log") as served:
                tokenizer = tokenizer or measure_tokenizer(stack.target, served.name)
                workload = replace(_workload(plan, served), seed=plan.seed + number, tokens_per_character=tokenizer)
                blocks[stack.name] = uvloop.run(run_block(plan, workload, stack, console))
        pairs.append((blocks[plan.stacks[0].name], blocks[plan.stacks[1].name]))
    return pairs


def _workload(plan: Plan, served: ServedModel) -> WorkloadConfig:
    if served.context_tokens is not None and served.context_tokens < plan.context_tokens:
        raise ProbeError(f"context_tokens is {plan.context_tokens}, but {served.name} takes {served.context_tokens}")
    return WorkloadConfig(
        model=served.name,
        context_tokens=plan.context_tokens,
        prompt_scale=plan.prompt_scale,
        output_scale=plan.output_scale,
        profiles=with_weights(DEFAULT_PROFILES, plan.rates_per_s),
    )


def ratios_of(
    pairs: Sequence[tuple[Measured, Measured]], objectives: Objectives, duration_s: float
) -> dict[str, dict[MetricName, Ratio]]:
    """By traffic: each class without its first touches, `first touch` for those, `all` for everything."""
    metrics = metrics_of(objectives, duration_s)
    result = {}
    for name in (*TrafficClass, "first touch", "all"):
        sides = [[_traffic(side.run.records, name) for side in pair] for pair in pairs]
        blocks = [PairedBlock.of(ours, theirs) for ours, theirs in sides if ours or theirs]
        if blocks:
            result[str(name)] = {key: ratio_of(blocks, metric) for key, metric in metrics.items()}
    return result


def _traffic(records: Sequence[RequestRecord], name: str) -> list[RequestRecord]:
    if name == "all":
        return list(records)
    if name == "first touch":
        return [record for record in records if record.first_touch]
    return [record for record in records if record.traffic_class == name and not record.first_touch]


def print_ratios(console: Console, plan: Plan, ratios: Mapping[str, Mapping[MetricName, Ratio]]) -> None:
    columns = ("traffic", "metric", *(stack.name for stack in plan.stacks), "ratio", "95 % interval")
    rows = [
        [name, key, _figure(r.ours), _figure(r.theirs), _figure(r.value), f"{_figure(r.low)} to {_figure(r.high)}"]
        for name, of_name in ratios.items()
        for key, r in of_name.items()
    ]
    console.print(table(columns, rows))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


@click.command(help=__doc__)
@click.argument("plan_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/compare"), show_default=True)
def main(plan_file: Path, out: Path) -> None:
    console = Console()
    try:
        plan = read_plan(plan_file)
        pairs = run_comparison(plan, out, console)
    except ProbeError as error:
        console.print(f"[bold red]cannot compare[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    objectives = objectives_of(plan)
    summaries: dict[str, Any] = {}
    for side, stack in enumerate(plan.stacks):
        records = [record for pair in pairs for record in pair[side].run.records]
        span_s = sum(span_of(pair[side].run.records, plan.duration_s) for pair in pairs)
        summary = summarise(records, objectives, span_s)
        print_summary(console, f"{stack.name}, all blocks", summary)
        summaries[stack.name] = {"summary": as_json(summary), "records": records_json(records)}
    ratios = ratios_of(pairs, objectives, plan.duration_s)
    print_ratios(console, plan, ratios)
    ratio_json = {name: {key: asdict(ratio) for key, ratio in of_name.items()} for name, of_name in ratios.items()}
    write_json(out / "comparison.json", {"plan": plan.model_dump(mode="json"), "ratios": ratio_json, **summaries})
    missing = Ratio(None, None, None)
    broken = [need.broken_by(ratios.get(need.traffic, {}).get(need.metric, missing)) for need in plan.require]
    for line in filter(None, broken):
        console.print(f"[bold red]missed[/] {line}", highlight=False)
    raise SystemExit(EXIT_MISSED if any(broken) else EXIT_OK)


if __name__ == "__main__":
    main()
