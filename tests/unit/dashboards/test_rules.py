"""The alerts as Prometheus and as Grafana evaluate them, and their place in the operations handbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from dashboards.alerts import ALERTS, RUNBOOK, Alert
from dashboards.generated import DIRECTORY
from dashboards.rules import grafana_rule_group, prometheus_rules

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; Debian has it in `prometheus`")
REPOSITORY = Path(__file__).parents[3]


def promtool(*arguments: str | Path) -> None:
    command = [str(PROMTOOL), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)  # noqa: S603 - Prometheus's own tool
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", DIRECTORY / "prometheus" / "rules.yaml")


@needs_promtool
def test_alerts_fire_on_what_they_are_for_and_on_nothing_else() -> None:
    promtool("test", "rules", Path(__file__).with_name("rules.test.yaml"))


def test_every_alert_is_seen_firing_by_the_rule_tests() -> None:
    text = Path(__file__).with_name("rules.test.yaml").read_text()
    assert {alert.name for alert in ALERTS} == set(re.findall(r'alertname="(\w+)"', text))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_its_heading_in_the_handbook(alert: Alert) -> None:
    headings = re.findall(r"^#+ (\w+)$", (REPOSITORY / RUNBOOK).read_text(), re.MULTILINE)
    assert [heading.lower() for heading in headings].count(alert.anchor) == 1


def test_prometheus_and_grafana_compare_the_same_values() -> None:
    rules = yaml.safe_load(prometheus_rules())["groups"][0]["rules"]
    for rule, grafana in zip(rules, grafana_rule_group("f", "p")["rules"], strict=True):
        query, limit = (part["model"] for part in grafana["data"])
        evaluator = limit["conditions"][0]["evaluator"]
        sign = {"gt": ">", "lt": "<"}[evaluator["type"]]
        assert rule["expr"] == f"({query['expr']}) {sign} {evaluator['params'][0]:g}"
        assert (rule["alert"], rule["for"], rule["labels"]) == (grafana["title"], grafana["for"], grafana["labels"])
        assert grafana["condition"] == limit["refId"]


def test_annotations_link_to_where_the_handbook_is_published() -> None:
    rule = yaml.safe_load(prometheus_rules("https://wiki.example/operations"))["groups"][0]["rules"][0]
    assert rule["annotations"]["runbook_url"] == f"https://wiki.example/operations#{ALERTS[0].anchor}"


def test_each_rule_engine_gets_its_own_template_for_the_value() -> None:
    prometheus = yaml.safe_load(prometheus_rules())["groups"][0]["rules"][0]["annotations"]["description"]
    grafana = grafana_rule_group("f", "p")["rules"][0]["annotations"]["description"]
    assert "{{ $value | humanizePercentage }}" in prometheus
    assert "{{ $values.A.Value | humanizePercentage }}" in grafana
