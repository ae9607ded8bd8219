"""The alerts as Prometheus's rule file and as Grafana's rule group."""

from __future__ import annotations

import json
from typing import Any

import yaml
from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.alerting import RelativeTimeRange
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from dashboards.alerts import ALERTS, EVALUATED_EVERY_S, RULE_GROUP, RUNBOOK, Alert

_EXPRESSION = DataSourceRef(type_val="__expr__", uid="__expr__")
_QUERY, _LIMIT = "A", "B"
# The queries are instant ones; Grafana asks for a range all the same.
_RANGE = RelativeTimeRange(from_val=600, to=0)


def prometheus_rules(runbook: str = RUNBOOK) -> str:
    """YAML for `rule_files`."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.condition,
            "for": f"{alert.for_minutes}m",
            "labels": {"severity": str(alert.severity)},
            "annotations": alert.annotations("$value", runbook),
        }
        for alert in ALERTS
    ]
    group = {"name": RULE_GROUP, "interval": f"{EVALUATED_EVERY_S}s", "rules": rules}
    return yaml.safe_dump({"groups": [group]}, sort_keys=False, width=10_000)


def grafana_rule_group(folder_uid: str, data_source_uid: str, runbook: str = RUNBOOK) -> dict[str, Any]:
    """Body of the provisioning API's rule group."""
    group = alerting.RuleGroup(RULE_GROUP).folder_uid(folder_uid).interval(EVALUATED_EVERY_S)
    for alert in ALERTS:
        group = group.with_rule(_grafana_rule(alert, folder_uid, data_source_uid, runbook))
    plain: dict[str, Any] = json.loads(json.dumps(group.build(), cls=JSONEncoder))
    return plain


def _grafana_rule(alert: Alert, folder_uid: str, data_source_uid: str, runbook: str) -> alerting.Rule:
    source = DataSourceRef(type_val="prometheus", uid=data_source_uid)
    query = prometheus.Dataquery().expr(alert.value).instant().ref_id(_QUERY).datasource(source)
    return (
        alerting.Rule(alert.name)
        .uid(alert.anchor)
        .rule_group(RULE_GROUP)
        .folder_uid(folder_uid)
        .org_id(1)
        .with_query(alerting.Query(_QUERY).datasource_uid(data_source_uid).model(query).relative_time_range(_RANGE))
        .with_query(alerting.Query(_LIMIT).datasource_uid("__expr__").model(_limit(alert)).relative_time_range(_RANGE))
        .condition(_LIMIT)
        .for_val(f"{alert.for_minutes}m")
        .no_data_state("OK")  # what has no series is an alert of its own
        .exec_err_state("Error")
        .labels({"severity": str(alert.severity)})
        .annotations(alert.annotations(f"$values.{_QUERY}.Value", runbook))
    )


def _limit(alert: Alert) -> expr.TypeThreshold:
    evaluator = expr.ExprTypeThresholdConditionsEvaluator().type("gt" if alert.above else "lt").params([alert.limit])
    condition = expr.ExprTypeThresholdConditions().evaluator(evaluator)
    return expr.TypeThreshold().expression(_QUERY).conditions([condition]).ref_id(_LIMIT).datasource(_EXPRESSION)
