"""The debug page in a browser: every feature, as a person uses it."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.debug.conftest import Client
from tests.debug.page.conftest import OpenPage, wait_for_text
from tests.debug.recordings import Recorded, record, record_conversation, workspace
from weakincentives.debug import SnapshotStore, export_page
from weakincentives.filesystem import ArchiveFilesystem
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder

expect.set_options(timeout=60_000)


def _step(page: Page) -> int:
    return int(page.evaluate("Number(/step=(\\d+)/.exec(location.hash)[1])"))


def _select(page: Page, number: int) -> None:
    page.locator(f'a.row[data-step="{number}"]').click()
    wait_for_text(page, ".stephead .number", f"#{number}")


def test_the_steps_are_listed_with_kind_time_and_tokens(open_page: OpenPage, client: Client):
    page = open_page(client)
    rows = page.locator("a.row")
    expect(rows).to_have_count(7)  # neither the beginning nor the end
    expect(rows.nth(1)).to_contain_text("model")
    expect(rows.nth(1)).to_contain_text("1.5 s · 1,234 tok")
    expect(rows.nth(3)).to_contain_text("edit_file app.py")
    expect(rows.nth(3)).to_contain_text("2 files")
    assert page.locator(".rows li").first.get_attribute("aria-setsize") == "7"


def test_a_rolled_back_call_is_shown_as_such(open_page: OpenPage, client: Client):
    page = open_page(client)
    expect(page.locator("a.row.failed")).to_have_count(1)
    expect(page.locator("a.row.failed")).to_contain_text("rolled back")
    _select(page, 6)
    expect(page.locator(".stephead")).to_contain_text("rolled back: it left no trace")
    expect(page.locator("pre.bad")).to_have_text("Not permitted")


def test_the_page_opens_on_a_summary_and_the_address_has_no_token(
    open_page: OpenPage, client: Client
):
    page = open_page(client)
    assert "token" not in page.url
    expect(page.locator(".runhead h2")).to_have_text("Make the greeting kind.")
    for title, text in (
        ("Outcome", "✓ Done"),
        ("Calls", "4 calls1 rolled back"),
        ("Tokens", "2,4682,400 in, 68 out"),
        ("Model", "a-model"),
    ):
        expect(page.locator(".card", has_text=title).first).to_contain_text(text)
    expect(page.locator(".answer")).to_contain_text("The greeting is kind now.")
    changes = page.locator(".changes details.change")
    expect(changes.locator("summary .letter")).to_have_text(["D", "M", "A"])
    expect(page.locator(".home")).to_have_attribute("aria-current", "true")
    page.locator(".role-tool .stepnumber", has_text="#5").click()
    expect(page.locator(".stephead .number")).to_have_text("#5")
    page.keyboard.press("0")
    expect(page.locator(".runhead h2")).to_be_visible()


def test_the_conversation_is_read_like_a_text(
    open_page: OpenPage, tmp_path: Path, serving: Callable[[Path], Any]
):
    with serving(record_conversation(tmp_path)) as client:
        page = open_page(client)
        messages = page.locator(".message")
        expect(messages.locator(".role:visible")).to_have_text(
            ["System prompt 3 words", "User#2", "Model#3", "Model#8"]
        )
        expect(page.locator(".role-system .prose")).to_be_hidden()
        said = page.locator(".role-assistant .prose").first
        expect(said.locator("li strong")).to_have_text("one")
        expect(said.locator("pre .t-k")).to_have_text("return")
        expect(said.locator("td")).to_have_text(["1"])
        assert said.locator("a").evaluate_all("all => all.map(each => each.href)") == [
            "https://example.org/",
            "https://example.org/",  # that of the picture, which is not loaded
        ]
        expect(said).to_contain_text("script](javascript:alert(1)) [file](file:///etc/passwd)")
        call = page.locator(".role-tool").first
        expect(call.locator(".line")).to_contain_text("shell_executepytest -q --color=yes")
        expect(call.locator(".line")).to_contain_text("failed (exit 1)")
        expect(call.locator("pre .t-red.t-bold")).to_have_text("FAILED")
        expect(call.locator("pre")).to_have_text("FAILED test_mean\nplain <b>")
        long = page.locator(".role-tool").nth(1)
        expect(long.locator(".line")).to_contain_text("read_filelong.txt  limit: 30")
        long.get_by_role("button", name="Show all 30 lines").click()
        expect(long.locator("pre.clipped")).to_have_count(0)
        patch = page.locator(".role-tool").nth(2)
        expect(patch.locator("pre .plus")).to_have_text("+new")
        tests = page.locator(".role-note")
        expect(tests.locator(".line")).to_contain_text("testmake checkfailed (exit 2)")
        expect(page.locator(".card", has_text="Tests")).to_contain_text("✗ Failedmake check")


def test_a_long_conversation_comes_in_pages(
    open_page: OpenPage, tmp_path: Path, serving: Callable[[Path], Any]
):
    recorded = Recorded(tmp_path / "long.timeline", workspace())
    recorded.begin("Count.")
    for number in range(260):
        recorded.answer(f"This is {number}.")
    recorded.recorder.close()
    with serving(tmp_path / "long.timeline") as client:
        page = open_page(client)
        expect(page.locator(".message")).to_have_count(200)
        page.get_by_role("button", name="Later messages (62)").click()
        expect(page.locator(".message").last).to_contain_text("This is 259.")
        page.goto(page.url.partition("#")[0] + "#step=262&view=talk")
        expect(page.locator(".message.new")).to_contain_text("This is 259.")
        page.get_by_role("button", name="Earlier messages (62)").click()
        expect(page.locator(".message")).to_have_count(262)
        # only the rows near those that are seen exist
        assert page.locator("a.row").count() < 60
        expect(page.locator('a.row[aria-current="true"]')).to_contain_text("This is 259.")
        page.locator(".steps").evaluate("each => { each.scrollTop = 0 }")
        expect(page.locator('a.row[data-step="2"]')).to_be_visible()


def test_a_call_shows_parameters_result_and_changes(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5")
    expect(page.locator(".fields tr", has_text="new_string")).to_contain_text("dear ")
    expect(page.locator("section", has_text="Result for the model").first).to_contain_text("done")
    expect(page.locator(".change .path")).to_have_text(["app.py", "docs/new.md"])
    expect(page.locator(".change tr.plus").first).to_contain_text("dear ")


def test_steps_can_be_filtered(open_page: OpenPage, client: Client):
    page = open_page(client)
    for label, number in (("Calls", 4), ("Changes", 2), ("Failed", 1), ("All", 7)):
        page.locator(".filters button", has_text=re.compile(f"^{label}")).click()
        expect(page.locator("a.row")).to_have_count(number)


def test_changes_are_shown_unified_and_side_by_side(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=diff")
    expect(page.locator(".change").first).to_contain_text("app.py")
    expect(page.locator(".diff:not(.split) tr.minus")).to_have_count(1)
    expect(page.locator(".diff tr.minus .t-s2")).to_have_count(1)
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator("table.split td.code.minus")).to_have_count(1)
    widths = page.eval_on_selector_all(
        "table.split tr:nth-child(2) td", "all => all.map((each) => each.clientWidth)"
    )
    assert max(widths[0::2]) < 60 < 200 < min(widths[1::2])
    expect(page.locator("table.split td.code.plus")).to_have_count(2)
    page.reload()
    expect(page.locator("table.split").first).to_be_visible()


def test_changed_words_are_marked_and_changed_whitespace_is_visible(
    open_page: OpenPage, tmp_path: Path
):
    files = workspace()
    files.write("m.txt", "def f():\n    return 1\nkeep\nname = old_\U0001f600_value\n")
    done = Recorded(tmp_path / "space.timeline", files)
    done.begin("Change whitespace.")
    files.write("m.txt", "def f():\n\treturn 1  \nkeep\nname = old_\U0001f680_value\n")
    done.call("edit_file", "m.txt")
    done.recorder.close()
    target = tmp_path / "space.html"
    export_page(SnapshotStore(tmp_path / "space.timeline").session(), target)
    page = open_page(target, "#step=3&view=diff")
    expect(page.locator(".diff tr.minus mark")).to_have_text(["····", "\U0001f600"])
    expect(page.locator(".diff tr.plus mark")).to_have_text(["→\t", "··", "\U0001f680"])
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator("table.split td.plus mark")).to_have_text(["→\t", "··", "\U0001f680"])
    expect(page.locator("table.split td.same mark")).to_have_count(0)


def test_changes_since_any_other_step(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=7&view=diff")
    expect(page.locator(".change")).to_have_count(1)
    page.locator(".bar select").select_option("1")
    expect(page.locator(".change")).to_have_count(3)


def test_a_deep_link_to_a_change_opens_it(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&file=docs/new.md&view=diff")
    expect(page.locator("details.change[open]")).to_have_attribute("data-path", "docs/new.md")


def test_the_tree_and_the_files_are_those_of_the_step(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1&view=files")
    expect(page.locator(".tree")).to_contain_text("8 files")
    page.locator(".tree summary", has_text="src").click()
    page.locator(".tree summary", has_text="deep").click()
    page.get_by_role("link", name="module.js").click()
    expect(page.locator(".viewer .source")).to_contain_text("export const answer = 42;")
    expect(page.locator(".viewer .t-c1")).to_have_text("// the answer")
    page.goto(page.url.partition("#")[0] + "#step=7&view=files&file=README.md")
    expect(page.locator(".viewer")).to_contain_text("No such file")


def test_a_file_names_the_steps_that_changed_it(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=9&view=files&file=app.py")
    page.locator(".touched a").click()
    expect(page.locator(".stephead .number")).to_have_text("#5")
    expect(page.locator("details.change[open]")).to_have_attribute("data-path", "app.py")


def test_a_link_to_a_line_marks_it(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1&view=files&file=app.py&line=4")
    expect(page.locator("tr.marked")).to_contain_text("def greet(name):")


def test_a_long_file_is_shown_in_parts(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1&view=files&file=long.txt")
    expect(page.locator("#line-2000")).to_have_count(1)
    expect(page.locator("#line-2001")).to_have_count(0)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#line-4000")).to_have_count(1)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#line-5000")).to_contain_text("line 5000")
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)


def test_pictures_notebooks_and_binary_files_are_shown(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1&view=files&file=picture.png")
    expect(page.locator(".viewer img")).to_have_js_property("naturalWidth", 10)
    page = open_page(client, "#step=1&view=files&file=notes.ipynb")
    expect(page.locator(".cell")).to_have_count(2)
    expect(page.locator(".cell.code pre")).to_have_text("printed by the cell\n")
    expect(page.locator(".cell.code img")).to_have_js_property("naturalWidth", 10)
    page = open_page(client, "#step=1&view=files&file=data.bin")
    expect(page.locator(".viewer")).to_contain_text("Binary, 2.0 KiB")
    expect(page.locator(".viewer")).to_contain_text("00 01 02 03")


def test_files_and_archives_can_be_downloaded(open_page: OpenPage, client: Client, tmp_path: Path):
    page = open_page(client, "#step=1&view=files&file=data.bin")
    with page.expect_download() as file:
        page.get_by_role("link", name="Download").click()
    assert file.value.suggested_filename == "data.bin"
    file.value.save_as(tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == bytes(range(256)) * 8
    page = open_page(client, "#step=5&view=use")
    with page.expect_download() as archive:
        page.get_by_role("link", name="ZIP archive").click()
    assert archive.value.suggested_filename == "run-step-5.fs.zip"
    archive.value.save_as(tmp_path / "step.fs.zip")
    with ArchiveFilesystem(tmp_path / "step.fs.zip") as files:
        assert "dear" in files.read("app.py").content


def test_slices_before_and_after_a_step(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=state")
    plan = page.locator("section.slice", has_text="Plan")
    expect(plan).to_contain_text("0 items before, 1 after")
    expect(plan.locator(".item.plus")).to_contain_text('"goal": "be kind"')
    expect(page.locator("details.slice", has_text="ToolInvoked")).to_contain_text("2 items")


def test_the_conversation_so_far_with_what_is_new(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=talk")
    expect(page.locator(".message")).to_have_count(5)
    expect(page.locator(".message.new")).to_have_count(1)
    expect(page.locator(".message.new .facts")).to_contain_text("M A docs/new.md")
    expect(page.locator(".role-user")).to_contain_text("Make the greeting kind.")


def test_a_new_file_is_added_in_the_tree_and_in_the_changes(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=files&file=docs/new.md")
    tree = page.locator(".tree a.changed")
    expect(tree.filter(has_text="new.md").locator(".letter")).to_have_text("A")
    expect(tree.filter(has_text="app.py").locator(".letter")).to_have_text("M")
    page.keyboard.press("2")
    expect(page.locator(".change summary .letter")).to_have_text(["M", "A"])


def test_the_commands_of_a_step_can_be_copied(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=use")
    row = page.locator(".commands li", has_text="Continue from here")
    expect(row).to_contain_text("--at 5")
    row.get_by_role("button", name="Copy").click()
    expect(row.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("wink resume ")
    assert copied.endswith("run.timeline --at 5")


def test_search_finds_steps_and_files(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1")
    page.keyboard.press("/")
    page.keyboard.type("greet(")
    results = page.locator(".results")
    expect(results).to_contain_text("In files of this step")
    expect(results.locator("a", has_text="app.py:4")).to_be_visible()
    results.locator("a", has_text="app.py:4").click()
    expect(page.locator("tr.marked")).to_contain_text("def greet")
    expect(results).to_be_hidden()
    page.keyboard.press("/")
    page.locator("#search").fill("nowhere at all")
    expect(results).to_contain_text("Nothing found")
    page.keyboard.press("Escape")
    expect(results).to_be_hidden()


def test_the_keyboard_walks_through_steps_and_views(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=1")
    for key, step in (
        ("j", 2),
        ("ArrowDown", 3),
        ("k", 2),
        ("n", 5),
        ("n", 7),
        ("p", 5),
        ("G", 9),
        ("k", 8),
        ("g", 1),
    ):
        page.keyboard.press(key)
        wait_for_text(page, ".stephead .number", f"#{step}")
    for key, title in (
        ("l", "Changes"),
        ("ArrowRight", "Files"),
        ("h", "Changes"),
        ("4", "State"),
        ("1", "Overview"),
    ):
        page.keyboard.press(key)
        expect(page.locator(".tabs a[aria-current]")).to_contain_text(title)
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_contain_text("next step")
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert _step(page) == 1


def test_everything_can_be_reached_with_the_tab_key(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"


def test_dark_and_light_follow_the_system_and_can_be_switched(open_page: OpenPage, client: Client):
    theme = "document.documentElement.dataset.theme"
    dark = open_page(client, scheme="dark")
    assert dark.evaluate(theme) == "dark"
    light = open_page(client)
    assert light.evaluate(theme) == "light"
    light.keyboard.press("t")
    assert light.evaluate(theme) == "dark"
    light.reload()
    light.wait_for_selector("body[data-ready]")
    assert light.evaluate(theme) == "dark"


@pytest.mark.parametrize("view", ["step", "diff", "files&file=app.py", "state", "talk", "use"])
def test_a_narrow_screen_has_one_column_and_never_scrolls_sideways(
    open_page: OpenPage, client: Client, view: str
):
    page = open_page(client, f"#step=5&view={view}", width=380)
    expect(page.locator(".timeline")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="← Steps").click()
    expect(page.locator(".timeline")).to_be_visible()
    _select(page, 4)


def test_only_the_first_step_is_where_the_recording_began(open_page: OpenPage, tmp_path: Path):
    path = record(tmp_path, "undone")
    files = workspace()
    with SessionRecorder(Session(), path, files, at=9, durable=False):
        files.write("new.txt", "by an agent")
    recorder = SessionRecorder(Session(), path, workspace(), at=10, title="undo", undoes=10)
    recorder.close()
    exported = tmp_path / "page.html"
    export_page(SnapshotStore(path).session(), exported)
    page = open_page(exported)
    for number, label, heading in (
        (1, "start", "Recording began"),
        (10, "resume", "Recording continued"),
        (recorder.last, "undo", "Undo"),
    ):
        row = page.locator(f'a.row[data-step="{number}"] .kind')
        expect(row).to_have_text([] if label == "start" else [label])
        page.goto(f"{exported.as_uri()}#step={number}")
        expect(page.locator(".stephead .kind")).to_have_text(heading)


def test_branches_are_drawn_as_a_tree(
    open_page: OpenPage, branched: Path, serving: Callable[[Path], Any]
):
    with serving(branched) as client:
        page = open_page(client, "#step=4")
        expect(page.locator(".graph circle")).to_have_count(8)
        columns = page.eval_on_selector_all(
            ".graph circle", "all => new Set(all.map(each => each.getAttribute('cx'))).size"
        )
        assert columns == 2
        expect(page.locator("a.row .tag")).to_have_text("other")
        expect(page.locator(".stephead")).to_contain_text("2 branches begin here: #5 #10 other")
        page.locator(".picker").get_by_role("link", name="Compare").click()
        expect(page.locator(".stephead h2")).to_have_text("Two branches compared")
        expect(page.locator(".figures thead th")).to_have_text(["main", "other"])
        calls = page.locator(".figures tr", has_text="Tool calls").locator("td")
        expect(calls).to_have_text(["4", "2"])
        expect(page.locator(".pairs .differs").first).to_be_visible()
        expect(page.locator(".compare")).to_contain_text("Final files")
        options = page.locator(".stephead select").first.locator("option")
        expect(options).to_have_text(["branches@main", "branches@other"])
        page.locator(".home").click()
        expect(page.locator(".branches [aria-current]")).to_have_text("other")
        page.locator(".branches a", has_text="main").click()
        expect(page.locator(".card", has_text="Calls")).to_contain_text("4 calls")


def test_a_folder_lists_its_sessions_and_compares_two(open_page: OpenPage, folder_client: Client):
    page = open_page(folder_client)
    expect(page.locator(".sessions tbody tr")).to_have_count(2)
    page.locator(".sessions").get_by_role("link", name="first").click()
    expect(page.locator(".runhead")).to_be_visible()
    page.get_by_role("link", name="Compare").click()
    expect(page.locator(".figures")).to_contain_text("Tool calls")
    expect(page.locator(".pairs tr.same").first).to_contain_text("#1 recording began")
    page.get_by_label("Session").select_option("branches")
    expect(page.locator("a.row")).to_have_count(8)


def test_a_running_session_is_followed(
    open_page: OpenPage, tmp_path: Path, serving: Callable[[Path], Any]
):
    recorded = Recorded(tmp_path / "live.timeline", workspace())
    with serving(tmp_path / "live.timeline") as client:
        page = open_page(client)
        expect(page.locator(".state.running")).to_have_text("Running")
        recorded.begin("Read.")
        recorded.call("read_file", "app.py", result="seen while it ran")
        expect(page.locator("a.row")).to_have_count(2)
        expect(page.locator(".message pre.text")).to_have_text("seen while it ran")
        expect(page.locator(".live")).to_have_text("live")
        page.keyboard.press("G")
        wait_for_text(page, ".stephead .number", "#3")
        recorded.call("read_file", "app.py", result="seen later")
        wait_for_text(page, ".stephead .number", "#4")
        page.keyboard.press("k")
        wait_for_text(page, ".stephead .number", "#3")
        recorded.call("read_file", "app.py")
        expect(page.locator("a.row")).to_have_count(4)
        assert _step(page) == 3
    recorded.recorder.close()


def test_a_problem_of_the_recording_is_shown(
    open_page: OpenPage, recorded: Path, tmp_path: Path, serving: Callable[[Path], Any]
):
    path = tmp_path / "cut.timeline"
    shutil.copytree(recorded, path)
    os.truncate(path / "steps", (path / "steps").stat().st_size - 40)
    with serving(path) as client:
        page = open_page(client)
        expect(page.locator(".problem")).to_contain_text("8 steps are intact")


def test_a_wrong_address_says_so(open_page: OpenPage, client: Client):
    page = open_page(client, "#step=5&view=files&file=nothing.py")
    expect(page.locator(".viewer")).to_contain_text("No such file")
    page = open_page(client, "#step=xyz&view=%%%&file=%")
    expect(page.locator(".runhead")).to_be_visible()
    page = open_page(client, "#branch=nothing")
    expect(page.locator("#detail")).to_contain_text("There is no branch 'nothing'")
