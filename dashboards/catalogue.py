"""All dashboards, and every expression on them and in the alerts, as a Prometheus can be asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dashboards.alerts import ALERTS
from dashboards.boards import Board
from dashboards.engines import ENGINES
from dashboards.panels import Needs
from dashboards.pulse import PULSE
from dashboards.routing import ROUTING
from dashboards.scaling import SCALING
from dashboards.serving import SERVING

BOARDS: tuple[Board, ...] = (SERVING, PULSE, ROUTING, SCALING, ENGINES)

_EVERYTHING = MappingProxyType({"application": ".*", "path": ".*", "engines": ".*"})


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """
    Args:
        expr: PromQL without Grafana's variables.
        needs: what must have happened before it has data; `traffic` is a few answered requests on both paths.
    """

    board: str
    panel: str
    expr: str
    needs: Needs


def queries_of_all_panels(window: str = "1m", chosen: Mapping[str, str] = _EVERYTHING) -> tuple[PanelQuery, ...]:
    """
    Args:
        window: of rates, in place of Grafana's `$__rate_interval`; at least four scrapes.
        chosen: regular expressions in place of the variables `application`, `path`, `engines`.
    """
    return tuple(
        PanelQuery(board.uid, panel.title, _filled(target.expr, window, chosen), target.needs or panel.needs)
        for board in BOARDS
        for panel in board.panels
        for target in panel.targets
    )


def alert_expressions() -> tuple[str, ...]:
    """The whole condition of each alert: it has data while the alert holds."""
    return tuple(alert.condition for alert in ALERTS)


def _filled(expr: str, window: str, chosen: Mapping[str, str]) -> str:
    for name, value in {"__rate_interval": window, **chosen}.items():
        expr = expr.replace(f"${name}", value)
    return expr
