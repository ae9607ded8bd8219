"""Replays a recorded trace: its arrivals, its lengths, and, where it has block hashes, its shared prefixes.

Reads Mooncake's jsonl (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512 tokens each) and Azure's
csv (`TIMESTAMP,ContextTokens,GeneratedTokens`). A block hash becomes 512 words that are one token each, so equal hashes
are equal tokens. Requests that do not fit the model's context are left out and counted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console

from loadtest.benchmark import EXIT_UNUSABLE, Reports, Timing, measure, report
from loadtest.content import one_token_words
from loadtest.options import objectives_from, run_options, target_options
from loadtest.probe import ASSUMED_CONTEXT_TOKENS, ProbeError, served_model, tokens_per_word
from loadtest.records import Objective, PlannedRequest, TrafficClass
from loadtest.streaming import Target
from loadtest.workloads import COMPLETION_ENDPOINT, encode_body

BLOCK_TOKENS = 512
RESERVE_TOKENS = 8  # special tokens a model may add to a prompt


@dataclass(frozen=True)
class TraceRequest:
    """One line of a trace. `block_hashes` is empty where the trace has none: then nothing is shared."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a .jsonl or .csv trace, in order, the first at 0 s. Raises ValueError with the line at fault."""
    parse = {".jsonl": _mooncake, ".csv": _azure}.get(path.suffix)
    if parse is None:
        raise ValueError(f"trace {str(path)!r}: give a Mooncake .jsonl or an Azure .csv")
    with path.open(encoding="utf-8", newline="") as lines:
        yield from parse(lines)


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    first_s: float | None = None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            at_s, hashes = row["timestamp"] / 1000, tuple(row["hash_ids"])
            prompt_tokens, output_tokens = int(row["input_length"]), int(row["output_length"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no request of a Mooncake trace: {error!r}") from error
        first_s = at_s if first_s is None else first_s
        yield TraceRequest(at_s - first_s, prompt_tokens, max(1, output_tokens), hashes)


def _azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    first: datetime | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])  # seven decimals; datetime holds six
            prompt_tokens, output_tokens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no request of an Azure trace: {error!r}") from error
        first = first or at
        yield TraceRequest((at - first).total_seconds(), prompt_tokens, max(1, output_tokens))


@dataclass(frozen=True)
class Slice:
    """Which part of a trace is replayed, and how fast.

    Args:
        end_s: None is the end of the trace.
        speed: 2 sends the same requests in half the time.
    """

    start_s: float = 0.0
    end_s: float | None = None
    speed: float = 1.0
    max_requests: int | None = None


@dataclass(frozen=True)
class Replay:
    """What will be sent.

    Args:
        left_out: requests of the slice that do not fit the context.
        shareable_ratio: share of the prompts' tokens in prefixes that an earlier request of the replay had: the hit
            rate of one cache without limit.
    """

    schedule: tuple[PlannedRequest, ...]
    left_out: int
    shareable_ratio: float

    @property
    def duration_s(self) -> float:
        return self.schedule[-1].at_s if self.schedule else 0.0


def prompt_of(request: TraceRequest, number: int, seed: int) -> str:
    """The prompt's text: `prompt_tokens` words, of which every block with a known hash is the same everywhere."""
    if not request.block_hashes:
        return one_token_words(f"{seed}/request/{number}", request.prompt_tokens)
    blocks = []
    for index, block_hash in enumerate(request.block_hashes):
        words = min(BLOCK_TOKENS, request.prompt_tokens - index * BLOCK_TOKENS)
        blocks.append(one_token_words(f"{seed}/block/{block_hash}", words) if words > 0 else "")
    return "".join(blocks)


def plan_replay(
    trace: Iterable[TraceRequest], part: Slice, model: str, context_tokens: int, seed: int, exact_outputs: bool
) -> Replay:
    """The schedule of a slice. A request is a first touch when less than half of its prompt was seen before it."""
    schedule: list[PlannedRequest] = []
    seen: set[int] = set()
    left_out = shared_tokens = prompt_tokens = 0
    for number, request in enumerate(trace):
        if request.at_s < part.start_s:
            continue
        ended = part.end_s is not None and request.at_s >= part.end_s
        if ended or (part.max_requests is not None and len(schedule) >= part.max_requests):
            break
        if request.prompt_tokens + request.output_tokens > context_tokens - RESERVE_TOKENS:
            left_out += 1
            continue
        known = min(request.prompt_tokens, _known_blocks(request.block_hashes, seen) * BLOCK_TOKENS)
        seen.update(request.block_hashes)
        shared_tokens, prompt_tokens = shared_tokens + known, prompt_tokens + request.prompt_tokens
        content: dict[str, Any] = {"prompt": prompt_of(request, number, seed)}
        schedule.append(
            PlannedRequest(
                key=f"trace/{number}",
                traffic_class=TrafficClass.TRACE,
                endpoint=COMPLETION_ENDPOINT,
                body=encode_body(model, content, request.output_tokens, exact_outputs),
                at_s=(request.at_s - part.start_s) / part.speed,
                first_touch=bool(request.block_hashes) and known * 2 < request.prompt_tokens,
            )
        )
    return Replay(tuple(schedule), left_out, shared_tokens / prompt_tokens if prompt_tokens else 0.0)


def _known_blocks(block_hashes: Sequence[int], seen: set[int]) -> int:
    for index, block_hash in enumerate(block_hashes):
        if block_hash not in seen:
            return index
    return len(block_hashes)


@click.command(help=__doc__)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@target_options
@click.option("--from", "start_s", type=float, default=0, show_default=True, help="Start of the slice, trace seconds.")
@click.option("--to", "end_s", type=float, help="End of the slice, trace seconds.")
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1, show_default=True, help="2: in half the time."
)
@click.option("--max-requests", type=click.IntRange(min=1), help="Stop after so many.")
@run_options
def main(trace: Path, **options: Any) -> None:
    console = Console()
    objectives = objectives_from(options["objectives"], {TrafficClass.TRACE: Objective(ttft_s=5.0)})
    part = Slice(options["start_s"], options["end_s"], options["speed"], options["max_requests"])
    try:
        target = Target(options["host"], options["api_key"])
        served = served_model(target, options["model"])
        context = options["max_context"] or served.context_tokens or ASSUMED_CONTEXT_TOKENS
        ratio = tokens_per_word(target, served.name)
        replay = plan_replay(read_trace(trace), part, served.name, context, options["seed"], options["exact_outputs"])
    except (ProbeError, ValueError) as error:
        console.print(f"[bold red]cannot start[/] {error}", highlight=False)
        raise SystemExit(EXIT_UNUSABLE) from error
    console.print(
        f"{len(replay.schedule)} requests over {replay.duration_s:.0f} s, {replay.left_out} left out (they exceed "
        f"{context} tokens); {replay.shareable_ratio:.1%} of the prompts' tokens repeat an earlier prefix",
        highlight=False,
    )
    if abs(ratio - 1) > 0.01:
        console.print(f"the model makes {ratio:.2f} tokens of a word: blocks have {BLOCK_TOKENS * ratio:.0f}")
    timing = Timing(max(1.0, replay.duration_s), options["drain_s"], options["timeout_s"])
    measured = uvloop.run(measure(target, replay.schedule, timing, (), console))
    shown = {name: value for name, value in options.items() if name != "api_key"}
    shown |= {"trace": trace.name, "left out": replay.left_out, "repeated prefixes": f"{replay.shareable_ratio:.1%}"}
    reports = Reports(objectives, options["min_goodput"], options["html"], options["json"])
    raise SystemExit(report(console, f"{trace.name} at {target.url}", shown, measured, reports))


if __name__ == "__main__":
    main()
