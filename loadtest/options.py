"""Command-line options that several load tests share, and the values they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from loadtest.records import Objective, TrafficClass

Command = TypeVar("Command", bound=Callable[..., Any])
MIXED_CLASSES = (TrafficClass.IDE, TrafficClass.CHAT, TrafficClass.REVIEW, TrafficClass.SUMMARY)


def parse_per_class(text: str, kind: type[float] | type[int]) -> dict[TrafficClass, Any]:
    """`ide=1,chat=0.2` -> {IDE: 1.0, CHAT: 0.2}. Raises click.BadParameter."""
    values: dict[TrafficClass, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            values[TrafficClass(name.strip())] = kind(value)
        except ValueError as error:
            classes = ", ".join(MIXED_CLASSES)
            raise click.BadParameter(f"{part!r}: write class=number, the classes are {classes}") from error
    return values


def parse_objective(text: str, defaults: Mapping[TrafficClass, Objective]) -> tuple[TrafficClass, Objective]:
    """`ide=ttft:1,itl:0.1,e2e:5` in seconds; other limits keep their default. Raises click.BadParameter."""
    name, _, limits = text.partition("=")
    known = {field.name.removesuffix("_s"): field.name for field in fields(Objective)}
    try:
        traffic_class = TrafficClass(name.strip())
        pairs = [limit.split(":") for limit in limits.split(",")]
        changes = {known[limit.strip()]: float(value) for limit, value in pairs}
    except (ValueError, KeyError) as error:
        raise click.BadParameter(f"{text!r}: write class=ttft:1,itl:0.1,e2e:5 with seconds") from error
    return traffic_class, replace(defaults.get(traffic_class, Objective()), **changes)


_TARGET_OPTIONS = (
    click.option("--host", default="http://127.0.0.1:8000", show_default=True, help="The only address talked to."),
    click.option("--model", default=None, help="Model name; default: the first that /v1/models lists."),
    click.option("--api-key", envvar="OPENAI_API_KEY", default=None, help="Bearer token; also from OPENAI_API_KEY."),
    click.option("--max-context", type=click.IntRange(min=128), help="Tokens; default: what /v1/models says."),
)
_RUN_OPTIONS = (
    click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same requests."),
    click.option("--drain", "drain_s", type=float, default=120, show_default=True, help="Seconds left for the last."),
    click.option("--timeout", "timeout_s", type=float, default=300, show_default=True, help="Seconds per request."),
    click.option(
        "--exact-outputs/--natural-outputs",
        default=True,
        show_default=True,
        help="Ask for answers of exactly the drawn length (vLLM's ignore_eos), or let the model stop.",
    ),
    click.option("--objective", "objectives", multiple=True, help="Per class: ide=ttft:1,itl:0.1,e2e:5 (seconds)."),
    click.option(
        "--min-goodput",
        type=click.FloatRange(0, 1),
        default=0.9,
        show_default=True,
        help="Exit code 1 when a smaller share of a class's offered requests meets its objective.",
    ),
    click.option("--html", type=click.Path(path_type=Path), help="Write a self-contained HTML report."),
    click.option("--json", type=click.Path(path_type=Path), help="Write the summary and every record."),
)


def _apply(command: Command, options: tuple[Callable[[Any], Any], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def target_options(command: Command) -> Command:
    return _apply(command, _TARGET_OPTIONS)


def run_options(command: Command) -> Command:
    return _apply(command, _RUN_OPTIONS)


def objectives_from(
    texts: tuple[str, ...], defaults: Mapping[TrafficClass, Objective]
) -> dict[TrafficClass, Objective]:
    result = dict(defaults)
    for text in texts:
        name, objective = parse_objective(text, result)
        result[name] = objective
    return result
