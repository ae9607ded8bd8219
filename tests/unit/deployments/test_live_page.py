"""Who gets the page, who gets its events, and what the browser may do with it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from app.config.keys import KeyRing
from tests.live_page_rig import PageServer, ScriptedBoard
from tests.unit.deployments.configs import config_of

WATCHER, USER = "sk-watcher-1234", "sk-user-5678"
KEYS = KeyRing.from_document(
    [{"name": "watcher", "key": WATCHER, "allow": ["pulse"]}, {"name": "user", "key": USER}], isolate=False
)


@pytest.fixture
def locked() -> Iterator[str]:
    server = PageServer(ScriptedBoard(), config_of(auth={"key_file": "keys.yaml"}), KEYS)
    yield server.start()
    server.stop()


def events(url: str, **headers: str) -> httpx.Response:
    with httpx.stream("GET", f"{url}/pulse/events", headers=headers, timeout=10) as response:
        if response.status_code != 200:
            response.read()
        return response


def test_the_page_is_open_since_it_holds_no_data(locked: str) -> None:
    for name, kind in (("", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = httpx.get(f"{locked}/pulse{name}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(locked: str) -> None:
    policy = httpx.get(f"{locked}/pulse").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert policy.endswith("frame-ancestors 'none'")


def test_origins_that_may_embed_it_are_named() -> None:
    server = PageServer(ScriptedBoard(), config_of(live_page={"embed_in": ["https://grafana.example:3000"]}))
    url = server.start()
    policy = httpx.get(f"{url}/pulse").headers["content-security-policy"]
    server.stop()
    assert policy.endswith("frame-ancestors https://grafana.example:3000")


@pytest.mark.parametrize("origin", ["https://a; script-src *", "*", "https://a b", "javascript:x"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="embed_in"):
        config_of(live_page={"embed_in": [origin]})


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong-0000"}])
def test_without_a_key_there_are_no_events(locked: str, headers: dict[str, str]) -> None:
    answer = events(locked, **headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_key_that_may_not_watch_is_told_what_it_lacks(locked: str) -> None:
    answer = events(locked, authorization=f"Bearer {USER}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert "`pulse`" in answer.json()["error"]["message"]


def test_a_key_that_may_watch_gets_events_that_nobody_stores(locked: str) -> None:
    answer = events(locked, authorization=f"Bearer {WATCHER}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["__init__.py", "..%2f__init__.py", "%2e%2e", "nothing.js"])
def test_nothing_but_the_pages_own_files_is_served(locked: str, name: str) -> None:
    assert httpx.get(f"{locked}/pulse/{name}").status_code == 404
