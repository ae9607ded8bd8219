"""`kvpulse dashboards push`: folder, data source, dashboards and alert rules of a Grafana server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.dashboards.options import prometheus_name_option, runbook_option

if TYPE_CHECKING:
    from rich.console import Console

    from dashboards.publish import Plan, Publisher

_COLOURS = {"created": "green", "updated": "green", "unchanged": "dim", "refused": "red"}


@click.command()
@click.option("--url", default="http://127.0.0.1:3000", show_default=True, envvar="GRAFANA_URL", help="Grafana.")
@click.option(
    "--token", envvar="GRAFANA_TOKEN", help="Of a service account. Better in GRAFANA_TOKEN: others see options."
)
@click.option(
    "--user", envvar="GRAFANA_USER", help="In place of a token; the password is GRAFANA_PASSWORD, or asked for."
)
@click.option(
    "--prometheus-url",
    envvar="KVPULSE_PROMETHEUS_URL",
    help="Prometheus as Grafana reaches it. Without it the data source must exist.",
)
@prometheus_name_option
@click.option("--folder", default="KVPulse", show_default=True, help="Title of the folder in Grafana.")
@click.option(
    "--ray-dashboards",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Push Ray's own dashboards from here too: /tmp/ray/session_latest/metrics/grafana/dashboards.",
)
@runbook_option
@click.option("--editable-rules", is_flag=True, help="Let alert rules be edited in Grafana.")
@click.option("--overwrite", is_flag=True, help="Replace what was edited in Grafana.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
def push(url: str, dry_run: bool, overwrite: bool, **options: Any) -> None:
    """Bring a Grafana server to what the code says. A second push changes nothing.

    Exit code 1 when something was refused or Grafana cannot be used; 2 when the options are not enough.
    """
    from rich.console import Console
    from rich.markup import escape

    from dashboards.grafana_address import connect, without_credentials
    from dashboards.grafana_errors import PushError, explained
    from dashboards.publish import Publisher

    console, shown_url = Console(highlight=False, soft_wrap=True), without_credentials(url)
    credential = _credential(url, options["token"], options["user"])
    try:
        with explained(shown_url):
            publisher = Publisher(connect(url, credential), overwrite, dry_run)
            counted = _push(publisher, _plan(options), console)
    except PushError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]{escape(str(error))}[/]")
        sys.exit(1)
    _conclude(counted, shown_url, dry_run, console)


def _credential(url: str, token: str | None, user: str | None) -> str | tuple[str, str] | None:
    import os

    from dashboards.grafana_address import has_credentials

    if token:
        return token
    if user:
        password = os.environ.get("GRAFANA_PASSWORD")
        return user, click.prompt("Password", hide_input=True, err=True) if password is None else password
    if has_credentials(url):
        return None
    raise click.UsageError("Grafana has to know who you are: set GRAFANA_TOKEN, or give --user.")


def _plan(options: dict[str, Any]) -> Plan:
    from dashboards.catalogue import BOARDS
    from dashboards.publish import DataSource, Plan
    from dashboards.ray_dashboard import boards_of_ray

    boards = [board.to_json() for board in BOARDS]
    if options["ray_dashboards"]:
        boards += boards_of_ray(options["ray_dashboards"])
    source = DataSource(options["prometheus_name"], options["prometheus_url"])
    return Plan(options["folder"], source, tuple(boards), options["runbook"], options["editable_rules"])


def _push(publisher: Publisher, plan: Plan, console: Console) -> dict[str, int]:
    """
    Returns:
        How many things had each action.
    """
    from rich.markup import escape

    counted = dict.fromkeys(_COLOURS, 0)
    for change in publisher.push(plan):
        counted[change.action] += 1
        said = f"{change.kind} {change.name}" + (f"  {change.note}" if change.note else "")
        console.print(f"[{_COLOURS[change.action]}]{change.action:9}[/] {escape(said)}")
    return counted


def _conclude(counted: dict[str, int], url: str, dry_run: bool, console: Console) -> None:
    if counted["refused"]:
        sys.exit(1)
    if counted["created"] + counted["updated"] == 0:
        console.print(f"{url} is up to date")
    elif dry_run:
        console.print(f"dry run: {url} was not changed")
    else:
        console.print(f"{url} is up to date now. Ray's dashboard embeds it after: kvpulse dashboards ray --help")
