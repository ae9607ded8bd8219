"""The mixed load: IDE completion, chat, code review and long documents against an OpenAI server.

Without --rate it is a closed loop of users who wait for their answers, with it an open loop that does not wait.
"""

from __future__ import annotations

import math
import random
from typing import Any

import click
import uvloop
from rich.console import Console

from loadtest.benchmark import EXIT_UNUSABLE, Load, Reports, Timing, measure, report
from loadtest.options import objectives_from, parse_per_class, run_options, target_options
from loadtest.probe import ASSUMED_CONTEXT_TOKENS, ProbeError, measure_tokenizer, served_model
from loadtest.records import PlannedRequest, TrafficClass
from loadtest.runner import ClosedLoop
from loadtest.schedule import SlotPool, closed_loop_user, open_loop
from loadtest.shapes import SHAPES, arrival_times
from loadtest.streaming import Target
from loadtest.workloads import DEFAULT_PROFILES, WorkloadConfig, with_weights

DEFAULT_SLOTS = 8


def probe_workload(console: Console, target: Target, options: dict[str, Any]) -> WorkloadConfig:
    """The workload for the model that the target serves. Raises ProbeError."""
    served = served_model(target, options["model"])
    context_tokens = options["max_context"] or served.context_tokens
    if context_tokens is None:
        context_tokens = ASSUMED_CONTEXT_TOKENS
        console.print(f"/v1/models tells no context length: assuming {context_tokens} tokens (--max-context sets it)")
    profiles = DEFAULT_PROFILES
    if options["weights"]:
        profiles = with_weights(profiles, parse_per_class(options["weights"], float))
    return WorkloadConfig(
        model=served.name,
        context_tokens=context_tokens,
        seed=options["seed"],
        prompt_scale=options["prompt_scale"],
        output_scale=options["output_scale"],
        exact_outputs=options["exact_outputs"],
        tokens_per_character=measure_tokenizer(target, served.name),
        profiles=profiles,
    )


def plan_load(workload: WorkloadConfig, options: dict[str, Any]) -> tuple[Load, list[PlannedRequest]]:
    """The load and its warm-up pass: an open loop where a rate is given, else users who wait for their answers."""
    seed, shape, duration_s = options["seed"], SHAPES[options["shape"]], options["duration_s"]
    if options["rate_per_s"] is not None:
        per_class = parse_per_class(options["sessions"], int)
        pool = SlotPool(workload, {name: per_class.get(name, DEFAULT_SLOTS) for name in TrafficClass})
        warmup = pool.warmup() if options["warmup"] else []
        rng = random.Random(f"{seed}/arrivals")  # noqa: S311 - load, not secrets
        arrivals = list(arrival_times(rng, options["rate_per_s"], duration_s, shape, options["gap_variation"]))
        return open_loop(pool, arrivals[: options["max_requests"]], rng), warmup
    peak = max(shape(elapsed / 100) for elapsed in range(101))
    count = math.ceil(options["users"] * peak)
    pools = [SlotPool(workload, dict.fromkeys(TrafficClass, 1), f"user{number}") for number in range(count)]
    warmup = [request for pool in pools for request in pool.warmup()] if options["warmup"] else []
    users = [closed_loop_user(pool, random.Random(f"{seed}/user/{number}")) for number, pool in enumerate(pools)]  # noqa: S311 - varies load, guards nothing
    return ClosedLoop(users, options["users"], options["think_s"], shape, options["max_requests"], seed), warmup


@click.command(help=__doc__)
@target_options
@click.option("--duration", "duration_s", type=click.FloatRange(min=1), default=60, show_default=True, help="Seconds.")
@click.option("--weights", default="", help="Share of each class, ide=1,chat=0.2; unnamed classes get none.")
@click.option("--users", type=click.IntRange(min=1), default=4, show_default=True, help="Closed loop: users who wait.")
@click.option("--think", "think_s", type=float, default=1, show_default=True, help="Closed loop: mean pause, seconds.")
@click.option("--rate", "rate_per_s", type=click.FloatRange(min=0, min_open=True), help="Open loop: requests a second.")
@click.option(
    "--gap-variation",
    type=click.FloatRange(min=0, min_open=True),
    default=1,
    show_default=True,
    help="Open loop: deviation over mean of the gaps; 1 is Poisson, 3 comes in bursts.",
)
@click.option("--sessions", default="", help=f"Open loop: open sessions per class, ide=8,summary=2 [{DEFAULT_SLOTS}].")
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="constant", show_default=True)
@click.option("--max-requests", type=click.IntRange(min=1), help="Stop after so many.")
@click.option("--warmup", is_flag=True, help="First a pass over the sessions; it is reported apart.")
@click.option("--prompt-scale", type=float, default=1, show_default=True, help="Multiplies the prompts' lengths.")
@click.option("--output-scale", type=float, default=1, show_default=True, help="Multiplies the answers' lengths.")
@run_options
def main(**options: Any) -> None:
    console = Console()
    defaults = {name: profile.objective for name, profile in DEFAULT_PROFILES.items()}
    objectives = objectives_from(options["objectives"], defaults)
    try:
        target = Target(options["host"], options["api_key"])
        workload = probe_workload(console, target, options)
    except (ProbeError, ValueError) as error:
        console.print(f"[bold red]cannot start[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    load, warmup = plan_load(workload, options)
    timing = Timing(options["duration_s"], options["drain_s"], options["timeout_s"])
    measured = uvloop.run(measure(target, load, timing, warmup, console))
    shown = {name: value for name, value in options.items() if name != "api_key"}
    shown |= {"model": workload.model, "context_tokens": workload.context_tokens}
    shown |= {f"length scale of {name}": f"{workload.scale_of(name):.2f}" for name in workload.profiles}
    reports = Reports(objectives, options["min_goodput"], options["html"], options["json"])
    raise SystemExit(report(console, f"{workload.model} at {target.url}", shown, measured, reports))


if __name__ == "__main__":
    main()
