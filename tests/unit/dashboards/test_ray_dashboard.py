"""Ray's dashboard is told by the names that the installed Ray reads."""

from __future__ import annotations

import shlex

from click.testing import CliRunner
from ray.dashboard.modules.metrics import grafana_dashboard_factory, metrics_head
from ray.dashboard.modules.metrics.dashboards.data_dashboard_panels import data_dashboard_config

from commands.main import main
from dashboards.serving import SERVING


def exported(*options: str) -> dict[str, str]:
    printed = CliRunner().invoke(main, ["dashboards", "ray", *options]).output
    return dict(shlex.split(line)[1].split("=", 1) for line in printed.splitlines())


def test_the_variables_are_those_that_ray_reads() -> None:
    uid_variable = grafana_dashboard_factory.GRAFANA_DASHBOARD_UID_OVERRIDE_ENV_VAR_TEMPLATE
    assert set(exported()) == {
        metrics_head.GRAFANA_HOST_ENV_VAR,
        metrics_head.GRAFANA_IFRAME_HOST_ENV_VAR,
        metrics_head.PROMETHEUS_HOST_ENV_VAR,
        metrics_head.PROMETHEUS_NAME_ENV_VAR,
        uid_variable.format(name=data_dashboard_config.name),
    }


def test_rays_tab_shows_our_dashboard_without_passwords() -> None:
    variables = exported("--url", "http://admin:hidden@grafana:3000/", "--browser-url", "https://grafana.example")
    assert variables["RAY_GRAFANA_DATA_DASHBOARD_UID"] == SERVING.uid
    assert variables["RAY_GRAFANA_HOST"] == "http://grafana:3000"
    assert variables["RAY_GRAFANA_IFRAME_HOST"] == "https://grafana.example"
