"""Options that several of the commands have."""

from __future__ import annotations

import click

runbook_option = click.option(
    "--runbook",
    default="docs/operations.md",
    show_default=True,
    envvar="KVPULSE_RUNBOOK_URL",
    help="Address of the operations handbook; alerts link to their headings in it.",
)
prometheus_name_option = click.option(
    "--prometheus-name",
    default="Prometheus",
    show_default=True,
    envvar="RAY_PROMETHEUS_NAME",
    help="Name of the Prometheus data source in Grafana.",
)
