"""The files that are made from the code and kept beside it: a change can be read, Prometheus can load its rules."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.alerts import RUNBOOK
from dashboards.catalogue import BOARDS
from dashboards.rules import prometheus_rules

DIRECTORY = Path(__file__).parent
_MADE = "# Made by `kvpulse dashboards build` from dashboards/alerts.py.\n"


def files(runbook: str = RUNBOOK) -> dict[str, str]:
    """Text by path under the directory; the same for the same code."""
    boards = {f"grafana/{board.uid}.json": json.dumps(board.to_json(), indent=2) + "\n" for board in BOARDS}
    return {**boards, "prometheus/rules.yaml": _MADE + prometheus_rules(runbook), "panels.md": _panels()}


def _panels() -> str:
    """What each panel's (i) says, for who has no Grafana open."""
    lines = ["<!-- Made by `kvpulse dashboards build`. -->", "# How to read each panel"]
    for board in BOARDS:
        lines += ["", f"## {board.title}", "", board.description]
        for row in board.rows:
            panels = [f"- **{panel.title}**: {panel.description}" for panel in row.panels]
            lines += ["", f"### {row.title}", "", *panels]
    return "\n".join(lines) + "\n"


def write(directory: Path = DIRECTORY, runbook: str = RUNBOOK) -> list[Path]:
    """
    Returns:
        The files that were missing or different.
    """
    changed = []
    for name, text in files(runbook).items():
        path = directory / name
        if path.exists() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        changed.append(path)
    return changed
