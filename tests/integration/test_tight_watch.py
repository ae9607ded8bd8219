"""Every query of every panel and alert has data in a Prometheus that scrapes a loaded stack, and alerts come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from dashboards.alerts import ALERTS
from dashboards.catalogue import queries_of_all_panels
from dashboards.panels import Needs
from dashboards.rules import prometheus_rules
from tests.integration.client import COMPLETIONS, open_session
from tests.integration.cluster import eventually
from tests.integration.configs import KEYS, MODEL
from tests.integration.prometheus import BINARY, Prometheus
from tests.integration.routing import body, token_ids
from tests.integration.stack import Stack

pytestmark = pytest.mark.skipif(BINARY is None, reason="there is no Prometheus: make test-tools")

HEADERS = {"authorization": f"Bearer {KEYS['owner']}"}
KV_ALERT = "KVPulseKvUsageAlert"
WINDOW = "20s"  # of rates: it must have seen two scrapes
ABSENT = "KVPulseMetricsAbsent"  # has a value only when nothing else has


def at_once(rules: str) -> str:
    """The rules as they are shipped, but an alert need not hold for minutes before it fires."""
    document = yaml.safe_load(rules)
    for group in document["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["for"] = "0s"
    return yaml.safe_dump(document)


@pytest.fixture(scope="module")
def prometheus(tight: Stack) -> Iterator[Prometheus]:
    running = Prometheus(tight.scrape_targets, at_once(prometheus_rules()))
    yield running
    running.close()


class Flood:
    """Three long answers at a time, again and again: together they need more blocks than the hot engine has."""

    def __init__(self, stack: Stack) -> None:
        self.statuses: list[int] = []
        self._url = stack.url + COMPLETIONS
        self._leave = asyncio.Event()
        self._tasks = [asyncio.create_task(self._client(random.Random(seed))) for seed in (71, 72, 73)]

    async def _client(self, rng: random.Random) -> None:
        async with open_session() as session:
            while not self._leave.is_set():
                request = body(token_ids(rng, 500), 300, stream=True) | {"model": f"{MODEL}:hot"}
                async with session.post(self._url, json=request, headers=HEADERS) as response:
                    await response.read()
                    self.statuses.append(response.status)

    async def leave(self) -> None:
        self._leave.set()
        await asyncio.gather(*self._tasks)


async def test_the_alert_of_a_watermark_fires_under_pressure_and_resolves_after_it(
    tight: Stack, prometheus: Prometheus
) -> None:
    def fires() -> bool:
        return {"engines": "hot", "application": "kvpulse"}.items() <= firing(prometheus, KV_ALERT).items()

    assert firing(prometheus, KV_ALERT) == {}
    flood = Flood(tight)
    await asyncio.to_thread(eventually, fires, "the alert fires", 120)
    await flood.leave()
    await asyncio.to_thread(eventually, lambda: not fires(), "the alert resolves", 120)
    assert set(flood.statuses) == {200}


def firing(prometheus: Prometheus, name: str) -> dict[str, Any]:
    """The labels of the alert that fires; empty without one."""
    found = [alert["labels"] for alert in prometheus.alerts() if alert["state"] == "firing"]
    return next((labels for labels in found if labels["alertname"] == name), {})


def test_every_query_of_every_panel_and_alert_has_data(tight: Stack, prometheus: Prometheus) -> None:
    """After the flood, so that there have been preemptions and evictions too; what needs a device is left out."""
    panels = [query for query in queries_of_all_panels(WINDOW) if query.needs is not Needs.DEVICE]
    wanted = [(f"{query.board}: {query.panel}", query.expr) for query in panels if query.needs is Needs.TRAFFIC]
    # What is compared; what must hold besides, enough traffic for one, need not hold here.
    wanted += [(f"alert {alert.name}", alert.value.split(" and ")[0]) for alert in ALERTS if alert.name != ABSENT]
    rng = random.Random(74)
    with httpx.Client(base_url=tight.url, timeout=120, headers=HEADERS) as client:

        def without_data() -> list[str]:
            for engines in ("hot", "cold"):
                request = body(token_ids(rng, 90), 40, stream=True) | {"model": f"{MODEL}:{engines}"}
                assert client.post(COMPLETIONS, json=request).status_code == 200
            return [name for name, expr in wanted if not prometheus.query(expr)]

        eventually(lambda: without_data() == [], "data for every query", 60, without_data)
    for query in panels:
        prometheus.query(query.expr)  # those of events that there may not have been: they are understood at least
