"""One dashboard: rows of panels under common variables, as a value and as the JSON that Grafana takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from app import metrics
from dashboards.panels import DATA_SOURCE, Panel

TAG = "kvpulse"  # by which the dashboards find each other


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """
    Args:
        uid: part of its address in Grafana, at most 40 characters; it never changes.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterator[Panel]:
        return (panel for row in self.rows for panel in row.panels)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the same for the same board."""
        plain: dict[str, Any] = json.loads(json.dumps(self._builder().build(), cls=JSONEncoder))
        return plain

    def _builder(self) -> builders.Dashboard:
        siblings = builders.DashboardLink("KVPulse").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
        board = (
            builders.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .timezone("browser")
            .time("now-30m", "now")
            .refresh("10s")
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .link(siblings.as_dropdown(False).include_vars(True).keep_time(True))
        )
        for variable in _variables():
            board = board.with_variable(variable)
        numbers = iter(range(1, 1000))
        for row in self.rows:
            board = board.with_row(builders.Row(row.title).id(next(numbers)))
            for panel in row.panels:
                board = board.with_panel(panel.builder(next(numbers)))
        return board


def _variables() -> tuple[builders.DatasourceVariable | builders.QueryVariable, ...]:
    source = builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    return (
        source,
        _values_of("application", metrics.KV_BLOCKS, "Name of the application in the Serve config file."),
        _values_of("path", metrics.REQUESTS, "What a request was classified as: hot, warm, cold."),
        _values_of("engines", metrics.KV_BLOCKS, "The engines that a request runs on, or that report: hot, cold."),
    )


def _values_of(label: str, metric: metrics.Metric, text: str) -> builders.QueryVariable:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        builders.QueryVariable(label)
        .description(text)
        .datasource(DATA_SOURCE)
        .query(f"label_values({metric.ray_name}, {label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )
