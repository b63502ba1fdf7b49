"""Insertion of lines: position, line endings and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contrib.handlers.calls import Workspace
from weakincentives.contrib.tools.handlers.edit import insert_lines
from weakincentives.contrib.tools.requests import InsertTextParams
from weakincentives.filesystem import MAX_WRITE_LENGTH


@pytest.mark.parametrize(
    ("before", "line", "text", "after"),
    [
        ("a\nb\n", 0, "x\n", "x\na\nb\n"),
        ("a\nb\n", 1, "x", "a\nx\nb\n"),
        ("a\nb\n", 2, "x\ny\n", "a\nb\nx\ny\n"),
        ("a\nb", 2, "x\n", "a\nb\nx"),
        ("a\nb", 1, "x", "a\nx\nb"),
        ("a\nb\n", 1, "\n", "a\n\nb\n"),
        ("a\r\nb\r\n", 1, "x\ny\n", "a\r\nx\r\ny\r\nb\r\n"),
        ("a\r\nb\n", 2, "x", "a\r\nb\nx\n"),
        ("a\nb\n", 1, "x\r\n", "a\nx\nb\n"),
        ("\ufeffa\n", 0, "x", "\ufeffx\na\n"),
        ("", 0, "x", "x"),
        ("", 0, "x\r\n", "x\r\n"),
        ("a", 1, "x\r\ny", "a\r\nx\r\ny"),
        ("a\udcff\n", 1, "x", "a\udcff\nx\n"),
    ],
)
def test_lines_go_after_a_line(before: str, line: int, text: str, after: str):
    assert insert_lines(before, line, text).content == after


@given(
    st.lists(st.sampled_from(["a\n", "b\r\n", "\n", "\udcff\n", "x\ry\n"]), max_size=6),
    st.sampled_from(["", "end"]),
    st.data(),
)
def test_nothing_is_lost_around_what_is_inserted(lines: list[str], last: str, data: st.DataObject):
    text = "".join(lines) + last
    line = data.draw(st.integers(0, len(lines) + bool(last)))
    outcome = insert_lines(text, line, "new\nlines\n")
    ((start, end),), ((new_start, new_end),) = outcome.spans, outcome.new_spans
    assert text[:start] == outcome.content[:new_start]
    assert text[end:] == outcome.content[new_end:]
    assert outcome.content.split("\n")[line].removesuffix("\r") == "new"
    assert outcome.content.endswith("\n") == (text.endswith("\n") or not text)


def test_the_tool_says_what_it_did(workspace: Workspace):
    workspace.fs.write("a.py", "one\ntwo\n")
    assert workspace.done(InsertTextParams("a.py", 1, "new")) == (
        "Edited a.py: 1 insertion, 1 line added, 0 removed\n"
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n one\n+new\n two"
    )
    assert workspace.fs.read("a.py").content == "one\nnew\ntwo\n"


@pytest.mark.parametrize("line", [-1, 3, 10**9])
def test_a_line_that_is_not_there_is_refused_with_how_many_there_are(
    workspace: Workspace, line: int
):
    workspace.fs.write("a.py", "one\ntwo\n")
    assert workspace.refused(InsertTextParams("a.py", line, "new")) == (
        f"No line {line}: the file has 2 lines; use a line from 0 to 2"
    )


def test_what_cannot_be_inserted_is_refused(workspace: Workspace):
    workspace.fs.write("a.py", "one\n")
    assert "empty" in workspace.refused(InsertTextParams("a.py", 0, ""))
    too_long = InsertTextParams("a.py", 0, "x" * (MAX_WRITE_LENGTH + 1))
    assert "48000" in workspace.refused(too_long)
    assert "did you mean 'a.py'" in workspace.refused(InsertTextParams("A.py", 0, "x"))
    workspace.fs.write_bytes("a.bin", b"\0")
    assert "binary" in workspace.refused(InsertTextParams("a.bin", 0, "x"))
