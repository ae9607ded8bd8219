"""`kvpulse dashboards`: Grafana dashboards and alert rules."""

from __future__ import annotations

import click

from commands.dashboards.build import build
from commands.dashboards.push import push
from commands.dashboards.ray import ray


@click.group()
def dashboards() -> None:
    """Dashboards and alert rules for Grafana and Prometheus."""


dashboards.add_command(build)
dashboards.add_command(push)
dashboards.add_command(ray)
