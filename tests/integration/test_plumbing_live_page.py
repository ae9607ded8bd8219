"""The live page of a running application: what it shows is what happened, and it outlives its board."""

from __future__ import annotations

import random
from typing import Any

import httpx

from tests.browser import NEEDS_CHROMIUM, chromium, open_page
from tests.integration.client import COMPLETIONS, PATH_HEADER
from tests.integration.cluster import Cluster, eventually
from tests.integration.live_events import latest, update_of
from tests.integration.routing import body, open_client, token_ids
from tests.integration.stack import Stack


def answer(client: httpx.Client, prompt: list[int], path: str = "hot") -> httpx.Response:
    response = client.post(COMPLETIONS, json=body(prompt, 2), headers={PATH_HEADER: path})
    assert response.status_code == 200, response.text
    return response


def with_answers(stack: Stack, requests: int) -> dict[str, Any]:
    """The update that tells of so many requests with one prompt, after they have been answered."""
    before = max((made["number"] for made in update_of(stack)["decisions"]), default=0)
    prompt = token_ids(random.Random(requests), 300)
    with open_client(stack) as client:
        for _ in range(requests):
            answer(client, prompt)

    def told() -> dict[str, Any] | None:
        update = update_of(stack)
        return update if sum(made["number"] > before for made in update["decisions"]) >= requests else None

    return eventually(told, f"{requests} decisions on the board") or {}


def hit_ratio(stack: Stack) -> float:
    """Of the hot engines, as the board tells it now; 0 without lookups."""
    return (latest(update_of(stack), "engines", "hot") or {}).get("hit_ratio") or 0.0


def test_the_page_holds_no_data_and_trusts_no_other_host(plumbing: Stack) -> None:
    page = httpx.get(f"{plumbing.url}/pulse", timeout=60)
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert httpx.get(f"{plumbing.url}/pulse/page.js", timeout=60).headers["content-type"].startswith("text/javascript")
    assert httpx.get(f"{plumbing.url}/pulse/__init__.py", timeout=60).status_code == 404


def test_the_board_counts_what_the_engines_looked_up_and_hit(plumbing: Stack) -> None:
    update = with_answers(plumbing, 20)
    hot = latest(update, "engines", "hot")
    assert hot is not None
    assert (hot["replicas"], hot["stale_replicas"], hot["level"]) == (2, 0, 0)
    assert update["ingresses"] == 1
    decision = update["decisions"][-1]["decision"]
    assert (decision["path"], decision["reason"], decision["outcome"]) == ("hot", "forced", "answered")
    assert decision["replica"] in update["replicas"]
    assert decision["prompt_tokens"] == 300
    # One prompt, twenty times, on replicas that keep its full blocks; tests before may have asked for other ones.
    # The first second that tells of them may know of the first ones only, which found nothing.
    assert eventually(lambda: hit_ratio(plumbing) > 0.2, "the hits", 30)
    assert hit_ratio(plumbing) < 1.0


@NEEDS_CHROMIUM
def test_the_page_shows_what_the_board_tells(plumbing: Stack) -> None:
    with_answers(plumbing, 5)
    with chromium() as browser, open_page(browser, f"{plumbing.url}/pulse") as visit:
        visit.wait_text("#connection", "live")
        visit.page.locator("#hot-engines tbody tr").nth(1).wait_for()
        told = update_of(plumbing)
        replicas = {name[:8] for name in told["replicas"]}
        shown = {visit.page.locator(".replicas tbody th").nth(at).inner_text() for at in range(3)}
        assert shown == replicas
        assert visit.text("#decisions tbody tr:first-child .outcome") == "answered"
        assert "forced" in visit.text("#decisions tbody tr:first-child")
        assert not visit.faults


@NEEDS_CHROMIUM
def test_requests_flow_while_the_board_is_away_and_the_page_says_so(plumbing: Stack, plumbing_cluster: Cluster) -> None:
    url = f"{plumbing.url}/pulse"
    with chromium() as browser, open_page(browser, url) as visit, open_client(plumbing) as client:
        visit.wait_text("#connection", "live")
        board = plumbing_cluster.replica_processes("PulseBoard")[0]
        board.suspend()  # a dead one is back within two seconds, before anybody misses it
        assert answer(client, [5] * 64).headers["x-kvpulse-admission"] == "home"
        visit.wait_text("#connection", "board away, requests still flow")
        assert answer(client, [6] * 64).headers["x-kvpulse-admission"] == "home"
        board.kill()
        visit.wait_text("#connection", "live")
        visit.page.locator("#hot-engines [data-chart=hit] .gap").first.wait_for(state="attached")
        assert not visit.faults
