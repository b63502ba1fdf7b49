"""The exported file in a browser: it works from disk, offline."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.debug.page.conftest import OpenPage
from tests.debug.recordings import KEY, record_commands
from weakincentives.debug import SnapshotStore, export_page


@pytest.fixture(scope="session")
def exported(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exported") / "run.html"
    export_page(SnapshotStore(recorded).session(), target)
    return target


def test_an_exported_file_shows_steps_changes_and_state(open_page: OpenPage, exported: Path):
    page = open_page(exported)
    expect(page.locator("a.row")).to_have_count(7)
    expect(page.locator(".card", has_text="Outcome")).to_contain_text("✓ Done")
    expect(page.locator(".changes .letter")).to_have_text(["D", "M", "A"])
    expect(page.locator(".message")).to_have_count(8)
    for fragment, selector, text in (
        ("#step=5", ".fields", "new_string"),
        ("#step=5&view=diff", ".diff tr.plus", "dear "),
        ("#step=5&view=state", ".item.plus", "be kind"),
        ("#step=5&view=use", ".command", "wink resume run.timeline --at 5"),
    ):
        page.goto(exported.as_uri() + fragment)
        expect(page.locator(selector).filter(has_text=text).first).to_be_visible()
    page.goto(exported.as_uri() + "#step=5&view=talk")
    expect(page.locator(".message")).to_have_count(5)


def test_an_exported_file_has_the_files_of_every_step(open_page: OpenPage, exported: Path):
    page = open_page(exported, "#step=1&view=files&file=app.py")
    expect(page.locator(".viewer .source")).to_contain_text('"hello "')
    expect(page.locator(".tree")).to_contain_text("README.md")
    page.goto(exported.as_uri() + "#step=9&view=files&file=app.py")
    expect(page.locator(".viewer .source")).to_contain_text('"dear "')
    expect(page.locator(".tree")).not_to_contain_text("README.md")
    page.goto(exported.as_uri() + "#step=9&view=files&file=picture.png")
    expect(page.locator(".viewer img")).to_have_js_property("naturalWidth", 10)


def test_an_exported_file_can_be_searched(open_page: OpenPage, exported: Path):
    page = open_page(exported, "#step=1")
    page.locator("#search").fill("greet(")
    expect(page.locator(".results")).to_contain_text("app.py:4")


def test_an_exported_file_has_no_keys_and_asks_nobody(open_page: OpenPage, exported: Path):
    page = open_page(exported, "#step=1&view=files&file=.env")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    expect(page.locator(".viewer .source")).to_contain_text("API_KEY=***")
    page.goto(exported.as_uri() + "#step=7")
    expect(page.locator("pre.text").first).to_contain_text("***")
    assert KEY not in page.content()
    page.reload()
    assert [each for each in requests if not each.startswith(("file:", "data:"))] == []


def test_the_page_offers_the_export(open_page: OpenPage, client: object, tmp_path: Path):
    page: Page = open_page(client)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == "run.html"
    download.value.save_as(tmp_path / "run.html")
    again = open_page(tmp_path / "run.html", "#step=5")
    expect(again.locator(".stephead")).to_contain_text("edit_file")


def test_a_command_that_failed_is_told_from_one_that_passed(
    open_page: OpenPage, tmp_path: Path
) -> None:
    target = tmp_path / "commands.html"
    export_page(SnapshotStore(record_commands(tmp_path)).session(), target)
    page = open_page(target)
    rows = page.locator("a.row")
    expect(rows.nth(1).locator(".mark.bad")).to_have_text("✗ exit 1")
    expect(rows.nth(2).locator(".mark.bad")).to_have_text("✗ timed out")
    expect(rows.nth(5)).to_contain_text("exit 0")
    expect(rows.nth(5).locator(".mark.bad")).to_have_count(0)
    expect(page.locator(".card", has_text="Calls")).to_contain_text("3 calls2 commands failed")
    expect(page.locator(".card", has_text="Tests")).to_contain_text("✓ Passedpytest -q, after 1")
    page.goto(target.as_uri() + "#step=3")
    expect(page.locator(".stephead")).to_contain_text("✗ command failed (exit 1)")
    page.locator(".filters button", has_text="Failed").click()
    expect(rows).to_have_count(2)
    page.goto(target.as_uri() + "#step=5")
    expect(page.locator(".body")).to_contain_text(
        "6 tool results replaced by a line: 27.0k tokens are now 9,000. The model takes 32.0k."
    )
    page.goto(target.as_uri() + "#step=6")
    expect(page.locator(".stephead")).to_contain_text("Context compacted")
    expect(page.locator(".body")).to_contain_text("Next: run it again.")
    page.goto(target.as_uri() + "#step=7")
    output = page.locator("section", has_text="Output").locator("pre").first
    expect(output).to_have_text("2 passed, 1 warning\n")
    expect(output.locator(".t-green.t-bold")).to_have_text("2 passed")
    expect(output.locator(".t-yellow")).to_have_text("1 warning")
