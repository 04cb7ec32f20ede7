# SPDX-License-Identifier: Apache-2.0
"""The distribution's Chromium for tests, and what is asked of a page in it."""

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LONG_MS = 120_000
READY = """() => performance.getEntriesByName('netmon-first-picture').length && !netmonPage.timeline.tiles.busy
  && netmonPage.restored
  && netmonPage.view.span === netmonPage.view.toSpan"""


def chromium() -> str:
    """Its path; skips where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: chromium)")
    return found


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """A browser."""
    path = chromium()
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=LONG_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def looking(browser: Any, address: str, **more: Any) -> Iterator[Any]:
    """A page of its own, which has to get by without an error."""
    size = more.pop("size", (1280, 720))
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **more)
    context.set_default_timeout(LONG_MS)
    page = context.new_page()
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda line: page.wrong.append(line.text) if line.type == "error" else None)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()


def settled(page: Any) -> None:
    """What is shown has come."""
    page.wait_for_function(READY)


def shown(page: Any) -> tuple[float, float]:
    """Begin and span (ns) of the time where the view is going to."""
    begin, span = page.evaluate("() => [netmonPage.view.toBegin, netmonPage.view.toSpan]")
    return begin, span
