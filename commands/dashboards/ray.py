"""`kvpulse dashboards ray`: the environment in which Ray's own dashboard shows Grafana's panels."""

from __future__ import annotations

import shlex

import click

from commands.dashboards.options import prometheus_name_option


@click.command()
@click.option("--url", default="http://127.0.0.1:3000", show_default=True, envvar="GRAFANA_URL", help="Grafana.")
@click.option("--browser-url", help="Grafana as browsers reach it, where that is another address.")
@click.option("--prometheus-url", default="http://127.0.0.1:9090", show_default=True, help="Prometheus.")
@prometheus_name_option
def ray(url: str, browser_url: str | None, prometheus_url: str, prometheus_name: str) -> None:
    """Print what to set before Ray starts: eval "$(kvpulse dashboards ray)"."""
    from dashboards.grafana_address import without_credentials
    from dashboards.ray_dashboard import environment

    url = without_credentials(url)
    for name, value in environment(url, browser_url or url, prometheus_url, prometheus_name).items():
        click.echo(f"export {name}={shlex.quote(value)}")
