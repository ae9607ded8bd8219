"""`kvpulse`: the command line. Commands import what they need when they run, so that `--help` answers at once."""

from __future__ import annotations

import click

from commands.check import check
from commands.dashboards import dashboards
from commands.drain import drain


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Serve one LLM from hot and cold vLLM engines, routed by what each KV cache really holds."""


main.add_command(check)
main.add_command(dashboards)
main.add_command(drain)
