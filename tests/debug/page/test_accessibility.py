"""The debug page for everybody: axe finds nothing serious, in light and dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.debug.conftest import Client
from tests.debug.page.conftest import OpenPage
from tests.sizes import size

pytestmark = pytest.mark.slow

VIEWS = [
    "",
    "#step=5",
    "#step=6",
    "#step=5&view=diff",
    "#step=5&view=files&file=app.py",
    "#step=1&view=files&file=notes.ipynb",
    "#step=5&view=state",
    "#step=5&view=talk",
    "#step=5&view=use",
]
COMPARISON = ["", "#session=branches&step=4", "#session=branches&a=first&b=branches"]
STEP = size(2, 1)
"""From one view that is looked at to the next; all have the same colours and parts."""


def _violations(page: Page, *rules: str) -> list[str]:
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['impact']} {each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("view", VIEWS[::STEP])
def test_axe_reports_nothing_serious(open_page: OpenPage, client: Client, view: str):
    page = open_page(client, view)
    assert _violations(page) == []
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert _violations(page, "color-contrast") == []


@pytest.mark.parametrize("view", COMPARISON[::STEP])
def test_axe_reports_nothing_serious_about_several_sessions(
    open_page: OpenPage, folder_client: Client, view: str
):
    page = open_page(folder_client, view)
    assert _violations(page) == []
    page.keyboard.press("t")
    assert _violations(page, "color-contrast") == []


def test_axe_reports_nothing_serious_about_the_help(open_page: OpenPage, client: Client):
    page = open_page(client)
    page.keyboard.press("?")
    assert _violations(page) == []


def test_axe_reports_nothing_serious_on_a_narrow_screen(open_page: OpenPage, client: Client):
    assert _violations(open_page(client, "#step=5&view=diff", width=380)) == []
