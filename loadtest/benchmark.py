"""One measured run from the command line: warm-up, load, live progress, reports, exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest import html_report
from loadtest.records import PlannedRequest, RequestRecord
from loadtest.report import as_json, print_summary, records_json, show_live, write_json
from loadtest.runner import ClosedLoop, LoadRun, run_closed_loop, run_open_loop, run_warmup
from loadtest.streaming import StreamingClient, Target
from loadtest.summary import Objectives, missed_objectives, summarise

EXIT_OK, EXIT_MISSED, EXIT_UNUSABLE = 0, 1, 2

Load = Sequence[PlannedRequest] | ClosedLoop


@dataclass(frozen=True)
class Timing:
    """Bounds of a run, in seconds."""

    duration_s: float
    drain_s: float = 120.0
    timeout_s: float = 300.0


@dataclass(frozen=True)
class Measured:
    """The records of the run, and those of the pass before it."""

    run: LoadRun
    warmup: list[RequestRecord]


@dataclass(frozen=True)
class Reports:
    """What to write and what to require."""

    objectives: Objectives
    min_goodput: float
    html: Path | None = None
    json: Path | None = None


async def measure(
    target: Target, load: Load, timing: Timing, warmup: Sequence[PlannedRequest], console: Console
) -> Measured:
    """Run `load` once; a sequence is an open loop."""
    async with StreamingClient(target, timing.timeout_s) as client:
        before = await run_warmup(client, warmup)
        run = LoadRun(timing.duration_s, timing.drain_s)
        live = asyncio.create_task(show_live(console, run))
        try:
            if isinstance(load, ClosedLoop):
                await run_closed_loop(client, load, run)
            else:
                await run_open_loop(client, load, run)
        finally:
            live.cancel()
            await asyncio.gather(live, return_exceptions=True)
    return Measured(run, before.records)


def report(console: Console, title: str, options: Mapping[str, object], measured: Measured, wanted: Reports) -> int:
    """Print the table, write the files, and return the exit code: EXIT_MISSED when an objective is missed."""
    records = measured.run.records
    summary = summarise(records, wanted.objectives, measured.run.duration_s)
    if measured.warmup:
        print_summary(console, f"{title}: warm-up", summarise(measured.warmup, wanted.objectives, 1e-9))
    print_summary(console, title, summary)
    if wanted.json is not None:
        content = {"title": title, "options": {name: str(value) for name, value in options.items()}}
        write_json(
            wanted.json,
            {
                **content,
                "summary": as_json(summary),
                "records": records_json(records),
                "warmup_records": records_json(measured.warmup),
            },
        )
    if wanted.html is not None:
        html_report.write(wanted.html, html_report.render(title, options, summary, records, wanted.objectives))
    missed = missed_objectives(records, wanted.objectives, wanted.min_goodput)
    if not records:
        missed.append("no request was offered: raise --rate, --users or --duration")
    for line in missed:
        console.print(f"[bold red]missed[/] {line}", highlight=False)
    return EXIT_MISSED if missed else EXIT_OK
