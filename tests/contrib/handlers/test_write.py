"""`write_file`: modes, limits, base64 and messages."""

import base64
from pathlib import Path

import pytest

from tests.contrib.handlers.calls import Workspace, make, make_context, spec, tree_of
from weakincentives.contrib.tools.context import Dialect, ToolSettings
from weakincentives.contrib.tools.handlers.write import write_file
from weakincentives.contrib.tools.requests import ReadFileParams, WriteFileParams
from weakincentives.contrib.tools.results import WriteFileResult
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    ReadOnlyError,
)
from weakincentives.filesystem.testing import MockFilesystem


def test_a_new_file_is_created_with_its_directories(workspace: Workspace):
    outcome = workspace.call(WriteFileParams("src/app/main.py", "one\ntwo"))
    assert outcome.text == "Created src/app/main.py: 2 lines, 7 bytes"
    assert outcome.result.value == WriteFileResult("src/app/main.py", "create", True, 7, 7)
    assert workspace.fs.read("src/app/main.py").content == "one\ntwo"


def test_an_empty_file_is_created(workspace: Workspace):
    assert workspace.done(WriteFileParams("a", "")) == "Created a: 0 lines, 0 bytes"


def test_a_file_that_exists_is_not_replaced_by_default(workspace: Workspace):
    workspace.fs.write("a.py", "old")
    assert workspace.refused(WriteFileParams("a.py", "new")) == (
        "File already exists and was not changed: 'a.py'; to edit it: edit_file; to replace"
        " it: write_file with mode='overwrite'"
    )


def test_hints_name_only_tools_that_are_there():
    fs = InMemoryFilesystem()
    fs.write("a.py", "old")
    silent = make_context(fs, dialect=Dialect())
    with pytest.raises(FileExistsError) as refusal:
        write_file(WriteFileParams("a.py", "new"), silent)
    assert str(refusal.value) == "File already exists and was not changed: 'a.py'"


def test_an_overwrite_shows_what_has_changed(workspace: Workspace):
    workspace.fs.write("a.py", "one\ntwo\nthree\n")
    text = workspace.done(WriteFileParams("a.py", "one\n2\nthree\n", "overwrite"))
    assert text == (
        "Replaced a.py: 3 lines, 12 bytes, was 14 bytes\n"
        "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    )


def test_an_overwrite_with_the_same_content_says_so(workspace: Workspace):
    workspace.fs.write("a.py", "same\n")
    text = workspace.done(WriteFileParams("a.py", "same\n", "overwrite"))
    assert text == "Replaced a.py: 1 line, 5 bytes, unchanged"


def test_an_overwrite_of_what_is_missing_creates_it(workspace: Workspace):
    value = workspace.value(WriteFileParams("a.py", "x", "overwrite"))
    assert value == WriteFileResult("a.py", "overwrite", True, 1, 1)


def test_an_overwrite_that_leaves_text_out_is_refused(workspace: Workspace):
    workspace.fs.write("a.py", "one\ntwo\n# ... the rest is unchanged ...\n")
    content = "ONE\n# ... rest of the code stays the same ...\n"
    assert workspace.refused(WriteFileParams("a.py", content, "overwrite")) == (
        "Content has a placeholder instead of text: '# ... rest of the code stays the same ...';"
        " the file was not replaced. Send the complete content, or edit part of the file"
        " with edit_file"
    )
    kept = "ONE\n# ... the rest is unchanged ...\n"
    workspace.done(WriteFileParams("a.py", kept, "overwrite"))
    workspace.done(WriteFileParams("new.py", content))


def test_an_overwrite_that_leaves_nothing_out_may_say_that_it_does(workspace: Workspace):
    workspace.fs.write("a.py", "one\ntwo\n")
    content = "one\n# ... rest of the code stays the same ...\ntwo\n"
    workspace.done(WriteFileParams("a.py", content, "overwrite"))
    assert workspace.fs.read("a.py").content == content


def test_an_overwrite_that_leaves_out_most_of_a_large_file_is_refused(workspace: Workspace):
    for number in range(40):
        workspace.fs.write("a.txt", f"line {number} of a large file\n" * 1_000, mode="append")
    content = "first\n# ... rest of the file unchanged ...\n"
    assert "placeholder" in workspace.refused(WriteFileParams("a.txt", content, "overwrite"))


def test_a_long_difference_is_cut_and_says_how_to_see_the_file(workspace: Workspace):
    old = "".join(f"line {number}\n" for number in range(3_000))
    workspace.fs.write("a.txt", old)
    text = workspace.done(WriteFileParams("a.txt", old.replace("line", "row"), "overwrite"))
    assert len(text) < 4_000
    assert text.endswith(
        "more lines of the diff; to see a.txt now: read_file with file_path='a.txt']"
    )


def test_every_message_is_within_the_budget():
    for budget in (10, 80, 200, 500):
        fs = InMemoryFilesystem()
        fs.write("a.txt", "old\n" * 500)
        workspace = Workspace(fs, settings=ToolSettings(max_characters=budget))
        text = workspace.done(WriteFileParams("a.txt", "new\n" * 500, "overwrite"))
        assert 0 < len(text) <= budget


def test_an_append_adds_to_the_end(workspace: Workspace):
    workspace.fs.write("log", "one\n")
    outcome = workspace.call(WriteFileParams("log", "two\n", "append"))
    assert outcome.text == "Appended 1 line, 4 bytes to log: 8 bytes now"
    assert outcome.result.value == WriteFileResult("log", "append", False, 4, 8)
    assert workspace.fs.read("log").content == "one\ntwo\n"


def test_an_append_to_an_unfinished_line_says_so(workspace: Workspace):
    workspace.fs.write("log", "one")
    text = workspace.done(WriteFileParams("log", "two", "append"))
    assert text.endswith("\nThe file had no final newline, so the new text continues its last line")


def test_bytes_are_sent_as_base64(workspace: Workspace):
    content = base64.encodebytes(bytes(range(256))).decode()  # with line ends, as programs write it
    text = workspace.done(WriteFileParams("logo.png", content, encoding="base64"))
    assert text == "Created logo.png: 256 bytes"
    assert workspace.fs.read_bytes("logo.png").content == bytes(range(256))


def test_binary_files_are_replaced_without_their_bytes_being_shown(workspace: Workspace):
    workspace.fs.write_bytes("logo.png", b"\0old")
    text = workspace.done(WriteFileParams("logo.png", "AG5ldw==", "overwrite", "base64"))
    assert text == (
        "Replaced logo.png: 4 bytes, was 4 bytes\nBinary files a/logo.png and b/logo.png differ"
    )


@pytest.mark.parametrize("content", ["not base64!", "abc"])
def test_what_is_not_base64_is_refused(workspace: Workspace, content: str):
    text = workspace.refused(WriteFileParams("a", content, encoding="base64"))
    assert text.startswith("Content is not valid base64: ")


def test_longer_content_is_refused_with_how_to_write_it_in_parts(workspace: Workspace):
    text = workspace.refused(WriteFileParams("a", "x" * (MAX_WRITE_LENGTH + 1)))
    assert text == (
        "Content for 'a' has 48001 characters;"
        " one call may write at most 48000. Nothing was written. Write the first part, then"
        " append the rest:"
        " write_file with mode='append'"
    )


def test_the_limit_counts_characters_of_text_and_bytes_of_base64(workspace: Workspace):
    workspace.done(WriteFileParams("text", "é" * MAX_WRITE_LENGTH))
    long = base64.b64encode(bytes(MAX_WRITE_LENGTH)).decode()
    workspace.done(WriteFileParams("bytes", long, encoding="base64"))
    too_long = base64.b64encode(bytes(MAX_WRITE_LENGTH + 1)).decode()
    assert "48001 bytes" in workspace.refused(WriteFileParams("more", too_long, encoding="base64"))


def test_parts_are_written_one_after_the_other(workspace: Workspace):
    for _ in range(3):
        workspace.done(WriteFileParams("a", "x" * MAX_WRITE_LENGTH, "append"))
    assert workspace.fs.stat("a").size_bytes == 3 * MAX_WRITE_LENGTH


def test_a_directory_in_the_way_is_named(workspace: Workspace):
    workspace.fs.mkdir("src")
    for mode in ("create", "overwrite", "append"):
        assert workspace.refused(WriteFileParams("src", "", mode)) == (
            "'src' is a directory, not a file; to list it: ls with path='src'"
        )
    assert workspace.refused(WriteFileParams(".", "")).startswith("'.' is a directory, not a file")


def test_a_file_in_the_way_is_named(workspace: Workspace):
    workspace.fs.write("src", "")
    assert workspace.refused(WriteFileParams("src/app/main.py", "")) == (
        "'src' is a file, so 'src/app/main.py' cannot be created below it; use another path,"
        " or move the file first"
    )


def test_a_new_name_is_ascii_unless_the_settings_say_otherwise(workspace: Workspace):
    assert workspace.refused(WriteFileParams("Größe.md", "")).startswith("New names must be ASCII")
    workspace.fs.write("Größe.md", "old")
    workspace.done(WriteFileParams("Größe.md", "new", "overwrite"))
    lenient = Workspace(workspace.fs, settings=ToolSettings(ascii_paths=False))
    lenient.done(WriteFileParams("Länge.md", ""))
    assert workspace.fs.exists("Länge.md")


@pytest.mark.parametrize("path", ["../out", "/../out", "a/../../out", "bell\a", "a\0b", "x" * 90])
def test_a_path_that_cannot_be_is_refused(workspace: Workspace, path: str):
    assert workspace.refused(WriteFileParams(path, ""))


def test_the_workspace_may_be_named_with_its_own_directory(tmp_path: Path):
    with make("host", tmp_path) as fs:
        text = Workspace(fs).done(WriteFileParams(f"{fs.root}/dir/a", ""))
        assert text == "Created dir/a: 0 lines, 0 bytes"


def test_a_full_workspace_says_how_to_make_room(tmp_path: Path):
    with make("host", tmp_path, limits=Limits(max_total_bytes=10)) as fs:
        assert Workspace(fs).refused(WriteFileParams("a", "x" * 11)) == (
            "Workspace quota exceeded: 11 of 10 bytes; nothing was changed. Free space with rm"
        )


def test_a_workspace_that_is_read_only_says_so():
    with pytest.raises(ReadOnlyError) as refusal:
        write_file(WriteFileParams("a", ""), make_context(InMemoryFilesystem(read_only=True)))
    assert str(refusal.value) == "The workspace is read-only; nothing was changed: 'a'"


def test_links_are_not_written_through(tmp_path: Path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    workspace = Workspace(HostFilesystem(tmp_path))
    assert workspace.refused(WriteFileParams("link", "new")) == (
        "'link' is a symbolic link to 'target'; links are not followed; to remove it: rm"
        " with path='link'"
    )
    assert "points to 'target'" in workspace.refused(WriteFileParams("link", "new", "overwrite"))


def test_half_a_character_is_refused():
    fs = InMemoryFilesystem()
    with pytest.raises(ValueError, match="lone surrogate"):
        write_file(WriteFileParams("a", "x\udc80"), make_context(fs))
    assert tree_of(fs) == {}


def test_any_filesystem_of_the_protocol_can_be_written():
    fs = MockFilesystem()
    context = make_context(fs, dialect=Dialect((spec(ReadFileParams),)))
    assert write_file(WriteFileParams("a/b", "text"), context).message == (
        "Created a/b: 1 line, 4 bytes"
    )
    with pytest.raises(FileExistsError):
        write_file(WriteFileParams("a/b", "text"), context)
