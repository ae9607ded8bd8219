"""What a run says: live progress, the final table, JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtest.records import Outcome, RequestRecord
from loadtest.runner import LoadRun
from loadtest.summary import GroupSummary, Quantiles, RunSummary, quantile

LIVE_PERIOD_S = 1.0
LOG_PERIOD_S = 10.0
RECENT_RECORDS = 500  # live latency is of these: sorting all of them every second would disturb the run


def milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:,.0f}" if value_s >= 0.1 else f"{value_s * 1000:.1f}"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _milliseconds_of(quantiles: Quantiles) -> str:
    return "/".join(milliseconds(value) for value in (quantiles.p50, quantiles.p95, quantiles.p99))


def _seconds_of(quantiles: Quantiles) -> str:
    return "/".join("-" if value is None else f"{value:.1f}" for value in (quantiles.p50, quantiles.p95, quantiles.p99))


COUNT_COLUMNS = ("class", "offered", "ok", "refused", "failed", "unfinished", "goodput", "tokens/s", "cached")
LATENCY_COLUMNS = ("class: p50/p95/p99", "TTFT ms", "ITL ms", "E2E s")


def count_row(group: GroupSummary) -> list[str]:
    """The cells of COUNT_COLUMNS."""
    counts = (group.offered, group.ok, group.refused, group.failed, group.unfinished)
    ends = (percent(group.goodput_ratio), f"{group.output_tokens_per_s:,.1f}", percent(group.cached_ratio))
    return [group.name, *(str(count) for count in counts), *ends]


def latency_row(group: GroupSummary) -> list[str]:
    """The cells of LATENCY_COLUMNS."""
    return [group.name, _milliseconds_of(group.ttft_s), _milliseconds_of(group.itl_s), _seconds_of(group.e2e_s)]


def tables_of(summary: RunSummary) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Columns and rows of the two tables of a run: what became of the requests, and how long they took."""
    first = [dataclasses.replace(group, name=f"{group.name}, first") for group in summary.first_touches]
    groups = (*summary.groups, *first, summary.total)
    counts, latencies = [count_row(group) for group in groups], [latency_row(group) for group in groups]
    return [(COUNT_COLUMNS, counts), (LATENCY_COLUMNS, latencies)]


def table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    result = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        result.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        result.add_row(*row)
    return result


def notes_of(summary: RunSummary) -> list[str]:
    """What a reader must know beside the table."""
    notes = [f"{count} x {reason}" for reason, count in sorted(summary.reasons.items(), key=lambda item: -item[1])]
    if summary.cut_requests:
        notes.append(
            f"{summary.cut_requests} requests were shortened by {summary.cut_tokens} tokens to fit the model's context"
        )
    notes.append(f"requests left the generator late by {_milliseconds_of(summary.lag_s)} ms (p50/p95/p99)")
    return notes


def print_summary(console: Console, title: str, summary: RunSummary) -> None:
    console.print(f"[bold]{title}[/]", highlight=False)
    for columns, rows in tables_of(summary):
        console.print(table(columns, rows))
    for note in notes_of(summary):
        console.print(f"  {note}", highlight=False)


def as_json(summary: RunSummary) -> dict[str, Any]:
    """The summary's own fields, seconds and tokens, with each group's goodput and cached ratio."""
    result = dataclasses.asdict(summary)
    for key in ("groups", "first_touches"):
        result[key] = [_group_json(group) for group in getattr(summary, key)]
    return {**result, "total": _group_json(summary.total)}


def _group_json(group: GroupSummary) -> dict[str, Any]:
    return {**dataclasses.asdict(group), "goodput_ratio": group.goodput_ratio, "cached_ratio": group.cached_ratio}


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def records_json(records: list[RequestRecord]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(record) for record in records]


def progress_of(run: LoadRun) -> dict[str, str]:
    """The run so far: what became of all requests, and the latency of the latest RECENT_RECORDS."""
    outcomes = Counter(record.outcome for record in run.records)
    ttft_s = [record.ttft_s for record in run.records[-RECENT_RECORDS:] if record.ttft_s is not None]
    return {
        "seconds": f"{run.elapsed_s:.0f} of {run.duration_s:.0f}",
        "sent": str(len(run.records)),
        "running": str(outcomes[Outcome.UNFINISHED]),
        "ok": str(outcomes[Outcome.OK]),
        "refused": str(outcomes[Outcome.REFUSED]),
        "failed": str(outcomes[Outcome.FAILED]),
        "TTFT ms p50/p95": f"{milliseconds(quantile(ttft_s, 0.5))} / {milliseconds(quantile(ttft_s, 0.95))}",
    }


async def show_live(console: Console, run: LoadRun) -> None:
    """Until cancelled: redraw the progress once a second; without a terminal, a line every ten seconds."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LOG_PERIOD_S)
            console.print(", ".join(f"{name} {value}" for name, value in progress_of(run).items()), highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(LIVE_PERIOD_S)
            progress = progress_of(run)
            live.update(table(tuple(progress), [list(progress.values())]), refresh=True)
