"""What all dashboards and alerts have in common."""

from __future__ import annotations

import re

import pytest

from app import metrics
from app.config.admission import AdmissionConfig
from dashboards.alerts import ALERTS
from dashboards.boards import Board
from dashboards.catalogue import BOARDS, alert_expressions, queries_of_all_panels
from dashboards.panels import Needs
from dashboards.pulse import PULSE
from dashboards.queries import RAY_LABELS

_NAME = re.compile(r"\bray_\w+")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
_EVERY_EXPRESSION = (*(query.expr for query in queries_of_all_panels()), *alert_expressions())
_ABSENT: set[str] = set()  # metrics that no panel shows, on purpose


def names_in(expr: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _NAME.findall(expr)}


def test_every_metric_is_on_a_panel_or_absent_on_purpose() -> None:
    shown = {name for query in queries_of_all_panels() for name in names_in(query.expr)}
    assert {metric.ray_name for metric in metrics.ALL} - shown == {f"ray_{name}" for name in _ABSENT}


@pytest.mark.parametrize("expr", _EVERY_EXPRESSION)
def test_every_expression_names_only_metrics_and_labels_that_exist(expr: str) -> None:
    known = {metric.ray_name: metric for metric in metrics.ALL}
    names = names_in(expr)
    assert names <= set(known)
    labels = {label for name in names for label in known[name].labels} | {*RAY_LABELS, "le", "instance", "job"}
    named = {label for braces in re.findall(r"{(.*?)}", expr) for label in re.findall(r"(\w+)(?:=|!)~?\"", braces)}
    grouped = {label for group in re.findall(r"by \((.*?)\)", expr) for label in group.split(", ")}
    assert named | grouped <= labels


def test_expressions_can_be_asked_without_grafana() -> None:
    assert not any("$" in expr for expr in _EVERY_EXPRESSION)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_has_a_unit_and_says_how_to_read_it(board: Board) -> None:
    for panel in board.to_json()["panels"]:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert len(panel["description"]) > 30
            assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_no_two_panels_share_a_number_or_a_place(board: Board) -> None:
    panels = board.to_json()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) == 23


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_query_asks_the_chosen_data_source(board: Board) -> None:
    json = board.to_json()
    assert len(board.uid) <= 40
    assert [variable["name"] for variable in json["templating"]["list"]] == [
        "datasource",
        "application",
        "path",
        "engines",
    ]
    sources = {target["datasource"]["uid"] for panel in json["panels"] for target in panel.get("targets", [])}
    assert sources == {"${datasource}"}


def test_the_watermarks_are_drawn_where_admission_has_them() -> None:
    marks = AdmissionConfig().watermarks.kv_usage_ratio
    (usage,) = [panel for panel in PULSE.to_json()["panels"] if panel["title"] == "KV usage"]
    steps = usage["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [step.get("value") for step in steps] == [None, marks.alert, marks.refuse_long, marks.compress]
    limits = [alert.limit for alert in ALERTS if alert.name.startswith("KVPulseKvUsage")]
    assert limits == [marks.alert, marks.refuse_long, marks.compress]


def test_panels_of_devices_say_that_there_is_none_and_can_be_told_apart() -> None:
    device = [panel for board in BOARDS for panel in board.panels if panel.needs is Needs.DEVICE]
    assert {panel.empty for panel in device} == {"no GPU"}
    needing = {
        name for query in queries_of_all_panels() if query.needs is Needs.DEVICE for name in names_in(query.expr)
    }
    assert needing == {metric.ray_name for metric in metrics.DEVICE_METRICS}
