"""`kvpulse dashboards build`: the dashboards and alert rules as files."""

from __future__ import annotations

from pathlib import Path

import click

from commands.dashboards.options import runbook_option


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write them; by default beside the code that they are made from.",
)
@runbook_option
def build(directory: Path | None, runbook: str) -> None:
    """Write grafana/*.json (to import by hand), prometheus/rules.yaml (for Prometheus's rule_files) and panels.md."""
    from dashboards import generated

    directory = directory or generated.DIRECTORY
    changed = generated.write(directory, runbook)
    for path in changed:
        click.echo(f"wrote {path}")
    if not changed:
        click.echo(f"nothing changed in {directory}")
