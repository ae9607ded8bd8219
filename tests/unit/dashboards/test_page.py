"""The live page in a real Chromium, before the real feed and board: what is on it is what the board said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec
import pytest

from app.config.keys import KeyRing
from tests.browser import DESK, NEEDS_CHROMIUM, PHONE, Visit, chromium, open_page
from tests.live_page_rig import COLD, HOT, WARM, PageServer, ScriptedBoard
from tests.unit.deployments.configs import config_of

pytestmark = NEEDS_CHROMIUM
DASH = "\u2013"
WATCHER = "sk-watcher-1234"
KEYS = KeyRing.from_document([{"name": "watcher", "key": WATCHER, "allow": ["pulse"]}], isolate=False)


@pytest.fixture
def board() -> ScriptedBoard:
    """A minute and a half of steady hits."""
    board = ScriptedBoard()
    board.scaled(1, 2)
    for second in range(90):
        board.report(HOT, queued=2, ttft_s=0.08)
        if second % 3 == 0:
            board.report(WARM, queued=2, reason="heavy_prefix", ttft_s=0.2)
        if second % 9 == 0:
            board.report(COLD, queued=2, outcome="kv_cache_high", replica="", routing="", ttft_s=None)
        board.second({HOT: 0.91, COLD: 0.8}, kv_usage_ratio=0.43, running_requests=4, waiting_requests=1)
    return board


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


Visited = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture
def visited(browser: Any, board: ScriptedBoard) -> Visited:
    """Opens the page of a server of its own. Args: `keys`, and those of a browser's context."""

    @contextmanager
    def visit_page(keys: KeyRing | None = None, **context: Any) -> Iterator[Visit]:
        config = config_of(auth={"key_file": "keys.yaml"}) if keys else config_of()
        server = PageServer(board, config, keys)
        try:
            with open_page(browser, f"{server.start()}/pulse", **context) as visit:
                yield visit
        finally:
            server.stop()

    return visit_page


def loaded(visit: Visit) -> Visit:
    visit.wait_text("#connection", "live")
    visit.page.locator("#decisions tbody tr").first.wait_for()
    return visit


def test_every_number_is_the_boards(board: ScriptedBoard, visited: Visited) -> None:
    update = json.loads(msgspec.json.encode(board.state.update(None)))
    last, decisions = update["samples"][-1], len(update["decisions"])
    hot = dict(zip(update["columns"]["engines"], last["engines"]["hot"], strict=True))
    warm = dict(zip(update["columns"]["paths"], last["paths"]["warm"], strict=True))
    with visited() as visit:
        loaded(visit)
        assert visit.text("#hot-engines .ratio strong") == f"{100 * hot['hit_ratio']:.0f} %" == "91 %"
        assert visit.text("#hot-engines [data-chart=kv] b") == f"{100 * hot['kv_usage_ratio']:.0f} %" == "43 %"
        assert visit.text("#hot-engines [data-chart=queue] b") == "2 + 2"
        assert visit.text("#hot-engines [data-chart=load] b") == str(hot["running_requests"]) == "8"
        assert visit.text("#hot-engines [data-chart=ttft] b") == "80 ms"
        assert visit.text("#cold-engines .ratio strong") == "80 %"
        row = visit.text("#requests tr[data-path=warm]").split()
        assert row[:2] == ["warm", f"{warm['requests_per_s']:.1f}"]
        assert "kv cache high" in visit.text("#requests tr[data-path=cold]")
        first = visit.text("#decisions tbody tr:first-child")
        assert "hot" in first
        assert "short prompt and output" in first
        assert "960 of 1,024" in first
        assert "prefix hit" in first
        assert "1 → 2 replicas" in visit.text("#scaling li")
        assert "512" in visit.text("#prefixes tbody tr")
        assert visit.page.locator("#decisions tbody tr").count() == min(12, decisions)
        assert not visit.faults


def test_a_collapse_is_seen_by_colour_by_shape_and_in_words(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        loaded(visit)
        assert visit.page.get_attribute("#verdict use", "href") == "#shape-steady"
        steady = _colour(visit, "#hot-engines .ratio strong")
        for _ in range(20):
            board.second({HOT: 0.2, COLD: 0.8})
        visit.wait_text("#verdict", "The hot cache has collapsed")
        assert visit.page.get_attribute("#verdict use", "href") == "#shape-collapsed"
        assert visit.text("#hot-engines .health") == "Collapsed, usually 91 %"
        assert visit.text("#hot-engines .ratio strong") == "20 %"
        assert _colour(visit, "#hot-engines .ratio strong") != steady
        assert visit.page.locator("#hot-engines [data-chart=hit] .low").count() == 1
        assert visit.page.title() == "⬣ 20\u00a0% hot · KVPulse"
        assert visit.page.locator("#cold-engines [data-chart=hit] .low").count() == 0
        assert not visit.faults


def test_two_collapsed_caches_are_both_named(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        loaded(visit)
        for _ in range(20):
            board.second({HOT: 0.2, COLD: 0.1})
        visit.wait_text("#verdict", "The hot cache has collapsed")
        visit.wait_text("#verdict", "The cold cache has collapsed")


def test_silent_replicas_and_missing_ingresses_are_unknown_and_not_zero(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        loaded(visit)
        board.silent |= {"hot1f9e8d7c", "cold5a6b7c8d"}
        for _ in range(8):
            board.second()
        visit.wait_text("#cold-engines .health", "Unknown")
        assert visit.text("#cold-engines .ratio strong") == DASH
        assert visit.text("#cold-engines [data-chart=kv] b") == DASH
        row = "#hot-engines tbody tr.stale"
        assert "silent 7 s" in visit.text(row)
        assert visit.text(f"{row} .hits") == DASH
        assert "pressure unknown" in visit.text("#hot-engines .pressure")
        assert "No ingress reports" in visit.text("#verdict")
        assert "2 replicas are silent" in visit.text("#verdict")


def test_pressure_is_told_with_its_signal(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        loaded(visit)
        board.report(level=2)
        board.second(kv_usage_ratio=0.92)
        visit.wait_text("#hot-engines .pressure", "refusing long prompts (kv usage ratio)")
        assert "The hot and cold engines are under pressure" in visit.text("#verdict")
        assert visit.page.get_attribute("#hot-engines .meter b", "data-over") == "2"


def test_after_a_restart_it_reconnects_by_itself_and_the_gap_stays_a_gap(board: ScriptedBoard, browser: Any) -> None:
    server = PageServer(board, config_of())
    with open_page(browser, f"{server.start()}/pulse") as visit:
        loaded(visit)
        visit.expect_failed_requests = True
        server.stop()
        visit.wait_text("#connection", "trying again")
        assert "old" in visit.text("#verdict")
        began_s = board.wall() + 40
        successor = ScriptedBoard("second", began_s)
        for _ in range(20):
            successor.second()
        successor.report(reason="session")
        successor.second()
        restarted = PageServer(successor, config_of(), port=server.port)
        restarted.start()
        visit.wait_text("#connection", "live")
        visit.wait_text("#decisions tbody tr", "session")
        assert visit.page.locator("#hot-engines [data-chart=hit] .gap").count() == 1
        assert visit.page.locator("#hot-engines [data-chart=hit] .line").count() == 2
        restarted.stop()
        assert not visit.faults


def test_a_board_that_is_away_is_named(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        loaded(visit)
        board.away = True
        visit.wait_text("#connection", "board away, requests still flow")
        assert visit.page.get_attribute("#verdict", "data-health") == "unknown"
        board.away = False
        visit.wait_text("#connection", "live")
        assert not visit.faults


def test_the_key_is_asked_for_kept_in_the_tab_and_sent_as_a_header_alone(visited: Visited) -> None:
    with visited(KEYS) as visit:
        visit.expect_failed_requests = True
        page = visit.page
        page.locator("#key").wait_for()
        assert page.locator(".card").count() == 0
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.fill("#key", "sk-wrong-0000")
        page.press("#key", "Enter")
        visit.wait_text("#login-error", "wrong API key")
        assert page.evaluate("document.activeElement.id") == "key"
        page.fill("#key", WATCHER)
        page.press("#key", "Enter")
        loaded(visit)
        assert page.evaluate("[...Object.values(sessionStorage)]") == [WATCHER]
        assert page.evaluate("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
        assert not any(WATCHER in url for url in asked)
        page.reload()
        loaded(visit)
        assert not visit.faults


@pytest.mark.parametrize("size", [PHONE, DESK, {"width": 320, "height": 640}], ids=["phone", "desk", "smallest"])
def test_it_fits_the_screen(visited: Visited, size: dict[str, int]) -> None:
    with visited(viewport=size) as visit:
        loaded(visit)
        assert not visit.overflows()
        assert visit.page.locator("#hot-engines .ratio strong").is_visible()
        assert visit.page.locator("#decisions tbody tr .outcome").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_readable_and_the_choice_is_remembered(visited: Visited, scheme: str) -> None:
    with visited(color_scheme=scheme) as visit:
        loaded(visit)
        assert _theme(visit) == scheme
        selectors = (".ratio span", ".pressure", "figcaption span", "thead th", "td small", ".health span", ".time")
        for selector in selectors:
            assert _contrast(visit, selector) >= 4.5, selector
        visit.page.click("#theme")
        other = _theme(visit)
        assert other != scheme
        for selector in selectors:
            assert _contrast(visit, selector) >= 4.5, selector
        visit.page.reload()
        loaded(visit)
        assert _theme(visit) == other
        assert visit.page.get_attribute("#theme", "aria-pressed") == str(other == "dark").lower()


def test_it_works_by_keyboard_in_the_order_in_which_it_is_read(board: ScriptedBoard, visited: Visited) -> None:
    with visited() as visit:
        page = loaded(visit).page
        focused = []
        for _ in range(3):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.id || document.activeElement.className "))
            if len(focused) == 1:
                assert page.locator(".skip").bounding_box()["x"] >= 0
        assert focused[0] == "skip"
        assert focused[2] == "theme"
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.querySelector('#window input:checked').value") == "300"
        assert visit.text("#hot-engines .axis span:first-child") == "5 min ago"


def test_assistive_technology_finds_a_status_charts_in_words_and_tables(visited: Visited) -> None:
    with visited() as visit:
        page = loaded(visit).page
        assert page.get_by_role("status").inner_text() == visit.page.inner_text("#verdict")
        chart = page.locator("#hot-engines").get_by_role("img", name="KV usage")
        assert "now 43\u00a0%; at most 43\u00a0% in 10 minutes" in chart.get_attribute("aria-label")
        assert page.get_by_role("article", name="hot engines").count() == 1
        assert page.get_by_role("columnheader", name="Outcome").count() == 1
        assert page.get_by_role("rowheader", name="hot0a1b2").count() == 1


def test_nothing_moves_for_who_wants_no_motion(visited: Visited) -> None:
    with visited(reduced_motion="reduce") as visit:
        loaded(visit)
        assert visit.page.evaluate("document.getAnimations().length") == 0


def _theme(visit: Visit) -> str:
    return str(visit.page.evaluate("document.documentElement.dataset.theme"))


def _colour(visit: Visit, selector: str) -> str:
    return str(visit.page.eval_on_selector(selector, "element => getComputedStyle(element).color"))


def _contrast(visit: Visit, selector: str) -> float:
    """WCAG's ratio of a text's colour to the nearest opaque ground behind it."""
    told = visit.page.eval_on_selector(
        selector,
        """element => {
          const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
          let behind = element;
          while (behind && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
          return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(numbers);
        }""",
    )
    lighter, darker = sorted((_luminance(colour) for colour in told), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: list[float]) -> float:
    linear = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
