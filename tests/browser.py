"""A real Chromium, where there is one, that notes whatever a page should not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: `make test-tools` installs it")
_QUIET = (
    "--no-sandbox",  # tests may run as root
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 240_000  # a busy machine fails no test
PHONE = {"width": 375, "height": 812}
DESK = {"width": 1280, "height": 900}


class Visit:
    """One page, opened in a fresh profile.

    Args:
        page: playwright's.
        faults: console errors, exceptions, and requests to other hosts than the page's own.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        self.expect_failed_requests = False
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)

    def text(self, selector: str) -> str:
        """What is read there, with plain spaces."""
        return str(self.page.inner_text(selector)).replace("\u00a0", " ")

    def wait_text(self, selector: str, words: str) -> None:
        self.page.locator(selector, has_text=words).first.wait_for()

    def overflows(self) -> bool:
        """Whether the page has to be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    def _console(self, message: Any) -> None:
        if message.type == "error" and not (self.expect_failed_requests and "Failed to load" in message.text):
            self.faults.append(message.text)

    def _request(self, request: Any) -> None:
        if urlsplit(request.url).hostname != "127.0.0.1":
            self.faults.append(f"asked another host: {request.url}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a fresh profile. While it runs no event loop may run in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Any, url: str, **context: Any) -> Iterator[Visit]:
    """A page that shares neither cookies nor storage with another.

    Args:
        context: of playwright's `new_context`, e.g. the colour scheme.
    """
    opened = browser.new_context(**{"viewport": DESK, **context})
    try:
        page = opened.new_page()
        page.set_default_timeout(WAIT_MS)
        visit = Visit(page)
        page.goto(url)
        yield visit
    finally:
        opened.close()
