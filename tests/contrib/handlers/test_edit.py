"""`edit_file`: replacements, messages, and the bytes that are preserved."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.handlers.calls import Workspace, make, make_context, tree_of
from tests.contrib.plain import Plain
from weakincentives.contrib.tools.context import ToolSettings
from weakincentives.contrib.tools.editing import Edit, EditOutcome, MatchLevel, apply_edits
from weakincentives.contrib.tools.handlers import edit
from weakincentives.contrib.tools.handlers.edit import edit_file
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    InsertTextParams,
    TextEdit,
)
from weakincentives.contrib.tools.results import EditFileResult, FileChange
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.posix import fault_hook

PROGRAM = "def area(a, b):\n    return a * b\n\n\ndef circle(r):\n    return 3 * r * r\n"


def test_a_new_text_of_nothing_but_numbers_is_not_a_numbered_listing(workspace: Workspace):
    workspace.fs.write("numbers.txt", "one\ntwo\nthree\n")
    workspace.call(EditFileParams("numbers.txt", "one\ntwo", "1\n2"))
    assert workspace.fs.read("numbers.txt").content == "1\n2\nthree\n"


def test_a_text_is_replaced_and_the_difference_is_shown(workspace: Workspace):
    workspace.fs.write("shapes.py", PROGRAM)
    outcome = workspace.call(EditFileParams("shapes.py", "a * b", "b * a"))
    diff = (
        "--- a/shapes.py\n+++ b/shapes.py\n@@ -1,5 +1,5 @@\n def area(a, b):\n"
        "-    return a * b\n+    return b * a\n \n \n def circle(r):\n"
    )
    assert outcome.text == (
        "Edited shapes.py: 1 replacement, 1 line added, 1 removed\n" + diff.rstrip("\n")
    )
    assert outcome.result.value == EditFileResult(
        (FileChange("shapes.py", "modified", size_bytes=len(PROGRAM)),),
        diff,
        1,
        1,
        MatchLevel.EXACT,
        1,
    )
    assert workspace.fs.read("shapes.py").content == PROGRAM.replace("a * b", "b * a")


def test_every_place_is_replaced_on_request(workspace: Workspace):
    workspace.fs.write("shapes.py", PROGRAM)
    text = workspace.done(EditFileParams("shapes.py", "return", "yield", replace_all=True))
    assert text.startswith("Edited shapes.py: 2 replacements, 2 lines added, 2 removed\n")
    assert workspace.fs.read("shapes.py").content == PROGRAM.replace("return", "yield")


def test_several_edits_are_made_in_order(workspace: Workspace):
    workspace.fs.write("a", "one\n")
    edits = (TextEdit("one", "two"), TextEdit("two", "three"))
    value = workspace.value(EditFileParams("a", edits=edits))
    assert (value.replacements, workspace.fs.read("a").content) == (2, "three\n")


def test_of_several_edits_all_are_made_or_none(workspace: Workspace):
    workspace.fs.write("a", "one\n")
    edits = (TextEdit("one", "two"), TextEdit("gone", "three"))
    text = workspace.refused(EditFileParams("a", edits=edits))
    assert text.startswith("Edit 2 of 2: Text to replace was not found: 'gone'")
    assert text.endswith("None of the 2 edits was applied")


def test_what_had_to_be_overlooked_is_told(workspace: Workspace):
    workspace.fs.write("a.go", "func f() {\n\tif ok {\n\t\tgo()\n\t}\n}\n")
    edit = EditFileParams("a.go", "    if ok {\n        go()\n    }\n", "    go()\n")
    outcome = workspace.call(edit)
    assert "\nThe match is not exact: the indentation differs\n" in outcome.text
    assert outcome.result.value is not None
    assert outcome.result.value.match_level is MatchLevel.INDENTATION
    assert workspace.fs.read("a.go").content == "func f() {\n\tgo()\n}\n"


def test_notes_of_the_engine_are_told(workspace: Workspace):
    workspace.fs.write("shapes.py", PROGRAM)
    outcome = workspace.call(
        EditFileParams("shapes.py", "     2\t    return a * b\n", "    pass\n")
    )
    assert "Line numbers copied from a listing were removed" in outcome.text
    assert outcome.result.value is not None
    assert outcome.result.value.notes


def test_a_dry_run_shows_and_changes_nothing(workspace: Workspace):
    workspace.fs.write("a", "one\n")
    before = tree_of(workspace.fs)
    outcome = workspace.call(EditFileParams("a", "one", "two", dry_run=True))
    assert outcome.text == (
        "Dry run, nothing was changed. a would be edited: 1 replacement, 1 line added, 1 removed\n"
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two"
    )
    assert outcome.result.value is not None
    assert not outcome.result.value.applied
    assert tree_of(workspace.fs) == before


def test_a_dry_run_works_where_nothing_may_be_written():
    writable = InMemoryFilesystem()
    writable.write("a", "one\n")
    frozen = writable.view(writable.snapshot())
    edit = EditFileParams("a", "one", "two", dry_run=True)
    assert edit_file(edit, make_context(frozen)).message.startswith("Dry run")
    with pytest.raises(PermissionError, match="read-only"):
        edit_file(EditFileParams("a", "one", "two"), make_context(frozen))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"new_string": "x"},
        {"old_string": "x"},
        {"old_string": "x", "new_string": "y", "edits": (TextEdit("x", "y"),)},
        {"new_string": "y", "edits": (TextEdit("x", "y"),)},
        {"old_string": "x", "new_string": "x"},
    ],
)
def test_an_edit_that_is_not_clear_is_refused(workspace: Workspace, given: dict[str, Any]):
    workspace.fs.write("a", "x")
    assert ";" in workspace.refused(EditFileParams("a", **given)).replace("\n", ";")


def test_a_text_is_removed_by_an_empty_one(workspace: Workspace):
    workspace.fs.write("a", "one\ntwo\n")
    workspace.done(EditFileParams("a", "one\n", ""))
    assert workspace.fs.read("a").content == "two\n"


def test_nothing_replaced_in_a_missing_file_creates_it(workspace: Workspace):
    outcome = workspace.call(EditFileParams("src/new.py", "", "one\ntwo\n"))
    assert outcome.text.startswith("Created src/new.py: 2 lines\n--- /dev/null\n+++ b/src/new.py\n")
    assert outcome.result.value is not None
    assert outcome.result.value.changes == (FileChange("src/new.py", "added", size_bytes=8),)
    assert workspace.fs.read("src/new.py").content == "one\ntwo\n"
    assert workspace.refused(EditFileParams("Größe", "", "x")).startswith("New names must be ASCII")


def test_nothing_replaced_in_an_empty_file_fills_it(workspace: Workspace):
    workspace.fs.write("a", "")
    workspace.done(EditFileParams("a", "", "text"))
    assert workspace.fs.read("a").content == "text"
    assert "empty" in workspace.refused(EditFileParams("a", "", "more"))


def test_a_missing_file_is_refused_with_names_that_may_be_meant(workspace: Workspace):
    workspace.fs.write("src/shapes.py", PROGRAM)
    text = workspace.refused(EditFileParams("src/shape.py", "a", "b"))
    assert text == "No such file: 'src/shape.py'; did you mean 'src/shapes.py'?"


def test_a_directory_is_refused_with_how_to_list_it(workspace: Workspace):
    workspace.fs.mkdir("src")
    assert workspace.refused(EditFileParams("src", "a", "b")) == (
        "'src' is a directory, not a file; to list it: ls with path='src'"
    )


def test_a_link_is_refused_with_its_target(tmp_path: Path):
    (tmp_path / "target").write_text("one")
    (tmp_path / "link").symlink_to("target")
    text = Workspace(HostFilesystem(tmp_path)).refused(EditFileParams("link", "one", "two"))
    assert "symbolic link to 'target'" in text


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"\x89PNG\0one", "binary"), ("one".encode("utf-16"), "UTF-16 text")],
)
def test_a_binary_file_is_refused(workspace: Workspace, data: bytes, what: str):
    workspace.fs.write_bytes("a", data)
    assert workspace.refused(EditFileParams("a", "one", "two")) == (
        f"'a' is {what} ({len(data)} bytes) and cannot be edited; to replace the whole file:"
        f" write_file with mode='overwrite', encoding='base64'"
    )


def test_a_file_over_the_write_limit_can_be_edited(workspace: Workspace):
    for part in range(4):
        workspace.fs.write("long", f"part {part}\n" + "é\n" * 20_000, mode="append")
    expected = workspace.fs.read_bytes("long").content.replace(b"part 2", b"PART 2")
    assert len(expected) > 4 * MAX_WRITE_LENGTH
    workspace.done(EditFileParams("long", "part 2", "PART 2"))
    assert workspace.fs.read_bytes("long").content == expected


def test_a_file_can_be_edited_beyond_the_write_limit(workspace: Workspace):
    workspace.fs.write("a", "x\n" * 20_000)
    workspace.done(EditFileParams("a", "x", "xxxxx", replace_all=True))
    assert workspace.fs.stat("a").size_bytes == 120_000


def test_one_call_brings_no_more_than_the_write_limit(workspace: Workspace):
    workspace.fs.write("a", "one\ntwo\n")
    half = "x" * (MAX_WRITE_LENGTH // 2 + 1)
    edits = (TextEdit("one", half), TextEdit("two", half))
    text = workspace.refused(EditFileParams("a", edits=edits))
    assert text.endswith(
        "at most 48000. Nothing was written."
        " Make this change in several calls, each with a part of the new text"
    )
    inserted = workspace.refused(InsertTextParams("a", 1, half + half))
    assert inserted.endswith("Make this change in several calls, each with a part of the new text")
    assert workspace.fs.read("a").content == "one\ntwo\n"


def test_a_file_that_is_too_large_is_refused_before_it_is_read():
    fs = MockFilesystem()
    fs.backend.write("huge", "x")
    found = fs.backend.stat("huge")
    fs.respond("stat", type(found)("huge", True, False, size_bytes=10**9))
    with pytest.raises(ValueError, match=r"only files up to .* Change it with a command"):
        edit_file(EditFileParams("huge", "x", "y"), make_context(fs))
    assert fs.calls_of("read_bytes") == ()


def test_the_quota_binds_edits(tmp_path: Path):
    with make("host", tmp_path, limits=Limits(max_total_bytes=10)) as fs:
        fs.write("a", "123456789")
        text = Workspace(fs).refused(EditFileParams("a", "1", "11111"))
    assert "quota exceeded" in text
    assert "Free space with rm" in text


def test_permissions_survive_an_edit(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text("echo one\n")
    script.chmod(0o750)
    Workspace(HostFilesystem(tmp_path)).done(EditFileParams("run.sh", "one", "two"))
    assert script.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfONE\r\ntwo\r\n"),
        (b"one\r\ntwo\nthree", b"ONE\r\ntwo\nthree"),
        (b"\xff\xfe one \x80\n", b"\xff\xfe ONE \x80\n"),
    ],
)
def test_bytes_around_an_edit_stay(workspace: Workspace, before: bytes, after: bytes):
    workspace.fs.write_bytes("a", before)
    text = workspace.done(EditFileParams("a", "one", "ONE"))
    assert workspace.fs.read_bytes("a").content == after
    assert text.encode()  # what is not text is escaped


def test_text_put_into_a_file_of_another_encoding_is_told(workspace: Workspace):
    workspace.fs.write_bytes("a", "Größe: one\n".encode("latin-1"))
    assert "UTF-8" not in workspace.done(EditFileParams("a", "one", "two"))
    outcome = workspace.call(EditFileParams("a", "two", "zwölf"))
    assert "\nThe file is not UTF-8: the new text was written as UTF-8" in outcome.text
    assert workspace.fs.read_bytes("a").content == b"Gr\xf6\xdfe: zw\xc3\xb6lf\n"


@pytest.mark.parametrize("path", ["file/below", "a" * 81, "/".join("d" * 17), "bell\a", "ä"])
def test_a_dry_run_is_as_strict_as_a_real_one(workspace: Workspace, path: str):
    workspace.fs.write("file", "")
    dry = workspace.refused(EditFileParams(path, "", "text", dry_run=True))
    assert dry == workspace.refused(EditFileParams(path, "", "text"))


def test_half_a_character_does_not_become_a_byte():
    fs = InMemoryFilesystem()
    fs.write("a", "one")
    with pytest.raises(ValueError, match="lone surrogate"):
        edit_file(EditFileParams("a", "one", "\udcff"), make_context(fs))
    assert fs.read("a").content == "one"


def test_messages_are_within_the_budget_and_say_how_to_see_more():
    fs = InMemoryFilesystem()
    fs.write("a", "one\n" * 8_000)
    edit = EditFileParams("a", "one", "two", replace_all=True)
    text = Workspace(fs, settings=ToolSettings(max_characters=1_000)).done(edit)
    assert len(text) <= 1_000
    assert text.endswith("to see a now: read_file with file_path='a']")


def test_a_cut_dry_run_says_how_to_see_the_rest(workspace: Workspace):
    workspace.fs.write("a", "one\n" * 8_000)
    text = workspace.done(EditFileParams("a", "one", "two", replace_all=True, dry_run=True))
    assert text.endswith("more lines of the diff; to see all of it, make fewer changes at once]")


def test_a_difference_of_many_short_lines_is_cut_too(workspace: Workspace):
    workspace.fs.write("a", "1\n" * 1_000)
    text = workspace.done(EditFileParams("a", "1", "2", replace_all=True))
    assert text.count("\n") == 201
    assert "[truncated: 1803 more lines of the diff; " in text


def test_long_lines_of_a_difference_are_cut(workspace: Workspace):
    workspace.fs.write("a", "x" * 20_000 + "one")
    text = workspace.done(EditFileParams("a", "one", "two"))
    assert len(text) < 5_000
    assert "... (18004 more characters)" in text


def test_edits_of_one_file_by_several_threads_are_all_kept(workspace: Workspace):
    workspace.fs.write("a", "".join(f"line {number}.\n" for number in range(40)))
    context = make_context(workspace.fs)

    def edit_line(number: int) -> None:
        edit_file(EditFileParams("a", f"line {number}.", f"LINE {number}."), context)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(edit_line, range(40)))
    assert workspace.fs.read("a").content == "".join(f"LINE {number}.\n" for number in range(40))


def test_an_edit_holds_the_write_lock_from_its_read_to_its_write(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    workspace.fs.write("a", "one\ntwo\n")
    context = make_context(workspace.fs)
    first_has_read, second_is_done = threading.Event(), threading.Event()

    def wait_for_the_second(text: str, edits: Sequence[Edit], *, room: int) -> EditOutcome:
        if edits[0].old == "one":
            first_has_read.set()
            second_is_done.wait(0.2)  # in vain, since the second waits for the lock
        return apply_edits(text, edits, room=room)

    def edit_second() -> None:
        assert first_has_read.wait(60)
        edit_file(EditFileParams("a", "two", "TWO"), context)
        second_is_done.set()

    monkeypatch.setattr(edit, "apply_edits", wait_for_the_second)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(edit_file, EditFileParams("a", "one", "ONE"), context)
        second = threads.submit(edit_second)
        first.result()
        second.result()
    assert workspace.fs.read("a").content == "ONE\nTWO\n"


def test_any_filesystem_of_the_protocol_can_be_edited():
    fs = Plain()
    fs.backend.write("a", "x" * MAX_WRITE_LENGTH)
    fs.backend.write("a", "one", mode="append")
    assert edit_file(EditFileParams("a", "one", "two"), make_context(fs)).value is not None
    assert fs.backend.read("a").content.endswith("xtwo")


def test_an_edit_that_fails_halfway_is_taken_back_on_any_filesystem():
    fs = Plain()
    fs.backend.write("a", "x" * MAX_WRITE_LENGTH)
    fs.backend.write("a", "one", mode="append")
    before = tree_of(fs.backend)
    real, left = fs.backend.write_bytes, [2]

    def failing(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise OSError("broken")
        return real(*args, **more)

    fs.backend.write_bytes = failing
    with pytest.raises(OSError, match="broken"):
        edit_file(EditFileParams("a", "one", "two"), make_context(fs))
    assert tree_of(fs.backend) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "fact"),
    [
        (
            (TextEdit("x", "y" * 40_000, replace_all=True),),
            "would become too long: replacing 'x' with 'yyy",
        ),
        ((TextEdit("x", "xx", replace_all=True),) * 40, "occurs in too many places: 'x'"),
    ],
)
def test_a_short_edit_cannot_make_a_file_huge(
    workspace: Workspace, edits: tuple[TextEdit, ...], fact: str
):
    workspace.fs.write("a.txt", "x\n" * 1_000)
    assert fact in workspace.refused(EditFileParams("a.txt", edits=edits))


def _saving(root: Path, texts: list[str]) -> Callable[[str], None]:
    """Save the next of the texts just before the file is exchanged."""

    def save(point: str) -> None:
        if point == "journal.recorded" and texts:
            (root / "other").write_text(texts.pop(0))
            (root / "other").rename(root / "file")

    return save


@pytest.mark.parametrize(
    "request_",
    [
        EditFileParams("file", "one", "two"),
        ApplyPatchParams("*** Begin Patch\n*** Update File: file\n-one\n+two\n*** End Patch"),
    ],
    ids=["edit", "patch"],
)
def test_an_edit_is_made_in_what_a_person_saved_meanwhile(tmp_path: Path, request_: Any):
    with HostFilesystem(tmp_path) as fs:
        workspace = Workspace(fs)
        fs.write("file", "one\n")
        with fault_hook(_saving(tmp_path, ["saved\none\n", "again\none\n"])):
            workspace.done(request_)
        assert fs.read("file").content == "again\ntwo\n"
        assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_edit_gives_up_if_a_person_saves_without_pause(tmp_path: Path):
    with HostFilesystem(tmp_path) as fs:
        workspace = Workspace(fs)
        fs.write("file", "one\n")
        with fault_hook(_saving(tmp_path, [f"{number}\none\n" for number in range(9)])):
            outcome = workspace.call(EditFileParams("file", "one", "two"))
        assert not outcome.result.success
        assert "Changed by another program since it was read; read it again" in outcome.text
        assert fs.read("file").content == "2\none\n"
