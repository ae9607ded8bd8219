"""What Ray's own dashboard has to be told to show Grafana's panels, ours among them.

It embeds Ray's dashboards by their uid, single panels of them by number, and the one for Ray Data as a whole, on a tab
of its Metrics page. An application that uses no Ray Data has that tab free: it shows ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboards.catalogue import BOARDS
from dashboards.grafana_errors import PushError
from dashboards.serving import SERVING


def environment(grafana_url: str, browser_url: str, prometheus_url: str, prometheus_name: str) -> dict[str, str]:
    """Variables for the process that starts Ray, since it starts Ray's dashboard.

    Args:
        grafana_url: as the head node reaches it.
        browser_url: Grafana as the browser reaches it.
        prometheus_url: as the head node reaches it.
        prometheus_name: of the data source in Grafana.
    """
    return {
        "RAY_GRAFANA_HOST": grafana_url.rstrip("/"),
        "RAY_GRAFANA_IFRAME_HOST": browser_url.rstrip("/"),
        "RAY_PROMETHEUS_HOST": prometheus_url.rstrip("/"),
        "RAY_PROMETHEUS_NAME": prometheus_name,
        "RAY_GRAFANA_DATA_DASHBOARD_UID": SERVING.uid,
    }


def boards_of_ray(directory: Path) -> Iterator[dict[str, Any]]:
    """Ray's own dashboards, which it writes when it starts, without the one whose uid was given to ours.

    Raises:
        PushError: there are none, or a file is no dashboard.
    """
    ours = {board.uid for board in BOARDS}
    paths = sorted(directory.glob("*.json"))
    if not paths:
        raise PushError(f"no dashboards (*.json) in {directory}; Ray writes them when it starts")
    for path in paths:
        try:
            board = json.loads(path.read_text())
            uid = board["uid"]
        except (ValueError, TypeError, KeyError):
            raise PushError(f"{path} is no Grafana dashboard") from None
        if uid not in ours:
            yield board
