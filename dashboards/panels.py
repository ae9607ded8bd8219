"""One panel: what it shows and how to read it, as a value; the Grafana panel is built from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Threshold, ThresholdsMode

from dashboards.queries import PromQL

# The variables of every dashboard. Ray's own dashboard sets `datasource` by this name where it embeds one.
DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
QUERIES = PromQL(
    window="$__rate_interval",
    selection=(("application", "$application"), ("path", "$path"), ("engines", "$engines")),
)
HEIGHT = 8
STAT_HEIGHT = 4

# Grafana's units.
RATIO, SECONDS, BYTES, BYTES_PER_S = "percentunit", "s", "bytes", "Bps"
COUNT, PER_S, REQUESTS_PER_S, TOKENS_PER_S = "short", "cps", "reqps", "si:tok/s"

ORANGE, RED, DARK_RED = "orange", "red", "dark-red"


class Needs(StrEnum):
    """What must have happened before a query has data."""

    TRAFFIC = "traffic"
    EVENT = "event"  # counters have no series before the first: a refusal, an eviction, a change of scale
    DEVICE = "device"  # a GPU


class Display(StrEnum):
    LINES = "lines"
    STACKED = "stacked"  # of parts that add up
    NUMBER = "number"  # the last value, large


@dataclass(frozen=True, slots=True)
class Target:
    """One query and the name of its series, with `{{label}}` for the value of a label."""

    expr: str
    legend: str
    needs: Needs | None = None  # where it differs from its panel's


@dataclass(frozen=True, slots=True)
class Panel:
    """
    Args:
        description: how to read it: what is good, what a change means.
        unit: one of Grafana's.
        marks: value and colour from which it holds, rising. Lines are drawn at them.
        highest: end of the axis, where values have one.
        empty: shown without data.
    """

    title: str
    description: str
    unit: str
    targets: tuple[Target, ...]
    marks: tuple[tuple[float, str], ...] = ()
    highest: float | None = None
    display: Display = Display.LINES
    needs: Needs = Needs.TRAFFIC
    empty: str | None = None
    width: int = 12

    def builder(self, panel_id: int) -> timeseries.Panel | stat.Panel:
        panel = self._number() if self.display is Display.NUMBER else self._lines()
        panel = panel.id(panel_id).title(self.title).description(self.description).unit(self.unit)
        panel = panel.datasource(DATA_SOURCE).min(0).span(self.width).thresholds(_thresholds(self.marks))
        if self.highest is not None:
            panel = panel.max(self.highest)
        if self.empty is not None:
            panel = panel.no_value(self.empty)
        for number, target in enumerate(self.targets):
            panel = panel.with_target(_query(target, number))
        return panel

    def _number(self) -> stat.Panel:
        last = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        return stat.Panel().height(STAT_HEIGHT).reduce_options(last).color_mode(common.BigValueColorMode.VALUE)

    def _lines(self) -> timeseries.Panel:
        legend = (
            common_builders.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
        panel = timeseries.Panel().height(HEIGHT).legend(legend).tooltip(tooltip).fill_opacity(10)
        if self.marks:
            lines = common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED)
            panel = panel.thresholds_style(lines)
        if self.display is Display.STACKED:
            panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
        return panel


def _query(target: Target, number: int) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(target.expr).legend_format(target.legend).range()
    return query.ref_id(chr(ord("A") + number)).datasource(DATA_SOURCE)


def _thresholds(marks: tuple[tuple[float, str], ...]) -> dashboard_builders.ThresholdsConfig:
    steps = [Threshold(value=None, color="green"), *(Threshold(value=value, color=colour) for value, colour in marks)]
    return dashboard_builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
