"""`kvpulse drain`: end the application without breaking an answer."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

POLL_S = 0.5


@click.command()
@click.option(
    "--address",
    default="http://127.0.0.1:8265",
    show_default=True,
    envvar="RAY_DASHBOARD_ADDRESS",
    help="The Ray dashboard of the cluster.",
)
@click.option("--application", default="kvpulse", show_default=True, help="Its name in the Serve config file.")
@click.option("--timeout-s", default=150.0, show_default=True, help="Longest wait for the answers that have begun.")
def drain(address: str, application: str, timeout_s: float) -> None:
    """Take the application out of service: nothing new is accepted, and answers that have begun come to their own end.

    Ctrl-C on `serve run`, like `serve shutdown`, closes Serve's proxies at once and with them every open answer: drain
    first. Other applications of the cluster stay. Exit code 1 when it cannot be reached, or does not end in time.
    """
    # The clusters that `serve run` starts ask for a token; without this Ray's client does not send the one it has.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from rich.console import Console

    console = Console(stderr=True)
    try:
        client = _client(address)
        _remove(client, application)
        with console.status(f"draining {application}"):
            ended = _wait_for_end(client, application, timeout_s)
    except (ConnectionError, RuntimeError) as error:
        console.print(f"[red]{address}: {str(error).splitlines()[0]}[/]", highlight=False)
        sys.exit(1)
    console.print(f"{application} has ended" if ended else f"[red]{application} has not ended in {timeout_s:g} s[/]")
    sys.exit(0 if ended else 1)


def _client(address: str) -> Any:
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    return ServeSubmissionClient(address)


def _remove(client: Any, application: str) -> None:
    """Declare the applications that stay; Serve drains and ends the one that is missing."""
    running = client.get_serve_details()["applications"]
    if application not in running:
        raise RuntimeError(f"there is no application {application!r}; running: {', '.join(running) or 'none'}")
    others = [one["deployed_app_config"] for name, one in running.items() if name != application]
    client.deploy_applications({"applications": others})


def _wait_for_end(client: Any, application: str, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while application in client.get_serve_details()["applications"]:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
