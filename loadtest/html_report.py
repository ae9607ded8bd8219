"""One self-contained HTML page per run: the table, the plots, the options. It loads nothing from anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from pathlib import Path

from loadtest.plots import Points, cumulative, lines, scatter
from loadtest.records import Objective, Outcome, RequestRecord
from loadtest.report import notes_of, tables_of
from loadtest.summary import Objectives, RunSummary

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8884; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem; }
svg { width: 100%; background: #8881; border-radius: 6px; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: #8884; } figure { margin: 0; } figcaption { font-weight: 600; }
"""


def render(
    title: str,
    options: Mapping[str, object],
    summary: RunSummary,
    records: list[RequestRecord],
    objectives: Objectives,
) -> str:
    """The page as text."""
    figures = "".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in _plots(records, objectives)
    )
    tables = "".join(html_table(columns, rows) for columns, rows in tables_of(summary))
    notes = "".join(f"<li>{escape(note)}</li>" for note in notes_of(summary))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1>{tables}<ul>{notes}</ul>"
        f'<div class="plots">{figures}</div><h2>Options</h2>'
        f"{html_table(('option', 'value'), [[name, str(value)] for name, value in options.items()])}</html>\n"
    )


def html_table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plots(records: list[RequestRecord], objectives: Objectives) -> list[tuple[str, str]]:
    by_class: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_class.setdefault(record.traffic_class, []).append(record)
    answered = {name: [r for r in group if r.outcome is Outcome.OK] for name, group in by_class.items()}
    ttft = {name: [(r.at_s, r.ttft_s) for r in group if r.ttft_s is not None] for name, group in answered.items()}
    ttft_shares = {name: cumulative([value for _, value in points]) for name, points in ttft.items()}
    itl_shares = {name: cumulative([gap for r in group for gap in r.itl_s]) for name, group in answered.items()}
    e2e = {name: cumulative([r.e2e_s for r in group if r.e2e_s is not None]) for name, group in answered.items()}
    return [
        ("Time to first token over the run", scatter(ttft, "seconds", "TTFT, s")),
        (
            "Requests per second: offered, within the objective",
            lines(_rates(records, objectives), "seconds", "per second"),
        ),
        ("Time to first token", lines(ttft_shares, "TTFT, s", "share of requests", log_x=True)),
        ("Gap between chunks", lines(itl_shares, "ITL, s", "share of gaps", log_x=True)),
        ("Time to the end of the answer", lines(e2e, "E2E, s", "share of requests", log_x=True)),
    ]


def _rates(records: list[RequestRecord], objectives: Objectives) -> dict[str, Points]:
    """Arrivals and good arrivals per second, by the time they were offered."""
    last_s = max((record.at_s for record in records), default=0.0)
    bin_s = max(1.0, last_s / 60)
    offered, good = Counter[int](), Counter[int]()
    for record in records:
        index = int(record.at_s / bin_s)
        offered[index] += 1
        good[index] += record.meets(objectives.get(record.traffic_class, Objective()))
    bins = range(int(last_s / bin_s) + 1)
    rates = {"offered": offered, "within the objective": good}
    return {name: [(index * bin_s, counts[index] / bin_s) for index in bins] for name, counts in rates.items()}


def write(path: Path, page: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
