"""A headless Chromium, one for each worker, and pages of the debug server in it."""

import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

from tests.debug.conftest import Client

# the background services would look for servers of Google
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome")

OpenPage = Callable[..., Page]
_open = ExitStack()
"""Closes the browser, if it is running."""
_browser: list[Browser] = []


@pytest.fixture
def browser() -> Browser:
    """Return the browser of this worker; without one, skip loudly, or fail where CI is set."""
    if not _browser:
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            message = "Chromium is missing: apt-get install chromium"
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
        playwright = _open.enter_context(sync_playwright())
        made = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        _open.callback(made.close)
        _open.callback(_browser.clear)
        _browser.append(made)
    return _browser[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser before other tests: its event loop runs as long as it is open."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _open.close()


@pytest.fixture
def open_page(browser: Browser) -> Generator[OpenPage, None, None]:
    """Return what opens a page, and fail the test if a page reports an error."""
    problems: list[str] = []
    contexts: list[Any] = []

    def note(message: ConsoleMessage) -> None:
        # an answer such as 404 is shown on the page
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            problems.append(message.text)

    def dismiss(dialog: Dialog) -> None:
        problems.append("a dialog")
        dialog.dismiss()

    def open_(
        source: Client | Path, fragment: str = "", *, scheme: str = "light", width: int = 1280
    ) -> Page:
        context = browser.new_context(
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport={"width": width, "height": 800},
            permissions=["clipboard-read", "clipboard-write"],
            timezone_id="UTC",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", dismiss)
        page.goto((source.url if isinstance(source, Client) else source.as_uri()) + fragment)
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        return page

    yield open_
    for each in contexts:
        each.close()
    assert problems == []


def wait_for_text(page: Page, selector: str, text: str) -> None:
    """Wait until an element has a text."""
    page.locator(selector).filter(has_text=re.compile(re.escape(text))).first.wait_for(
        timeout=60_000
    )
