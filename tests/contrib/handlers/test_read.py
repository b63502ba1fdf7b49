"""`read_file`: pages of text, the notes about them, and errors with a next step."""

import base64
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contrib.handlers.requests import PLAIN, ask, make_context, make_link, refusal
from weakincentives.contrib.tools.context import Dialect, ToolSettings
from weakincentives.contrib.tools.editing import Edit, apply_edits
from weakincentives.contrib.tools.requests import GrepParams, ReadFileParams, ReadManyParams
from weakincentives.contrib.tools.results import ReadFileResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    InMemoryFilesystem,
    PathEscapeError,
)


def message(fs: Filesystem, path: str, **more: object) -> str:
    return ask(fs, ReadFileParams(path, **more)).message  # pyright: ignore[reportArgumentType]


def test_lines_are_numbered_as_cat_does(fs: Filesystem):
    fs.write("src/a.py", "import os\n\nprint(1)\n")
    assert message(fs, "src/a.py") == (
        "src/a.py: lines 1 to 3 of 3\n     1\timport os\n     2\t\n     3\tprint(1)"
    )


def test_the_value_is_the_page_as_it_is_in_the_file(fs: Filesystem):
    fs.write("a.txt", "one\r\ntwo\nthree")
    value = ask(fs, ReadFileParams("a.txt", offset=0, limit=2)).value
    assert value == ReadFileResult("a.txt", "one\r\ntwo\n", 0, 2, 3, 2, 14)


def test_a_page_says_how_to_go_on(fs: Filesystem):
    fs.write("a.txt", "".join(f"line {number}\n" for number in range(1, 11)))
    text = message(fs, "a.txt", offset=4, limit=3)
    assert text.startswith("a.txt: lines 5 to 7 of 10\n     5\tline 5\n")
    assert text.endswith(
        "\n[truncated: 3 more lines; to continue: read_file with file_path='a.txt',"
        " offset=7, limit=3]"
    )
    assert message(fs, "a.txt", offset=7).endswith("    10\tline 10")


def test_a_page_without_a_tool_to_go_on_only_says_that_there_is_more(fs: Filesystem):
    fs.write("a.txt", "1\n2\n")
    text = ask(fs, ReadFileParams("a.txt", limit=1), dialect=Dialect()).message
    assert text.endswith("     1\t1\n[truncated: 1 more line]")


def test_a_page_has_2000_lines(fs: Filesystem):
    fs.write("a.txt", "x\n" * 2_001)
    value = ask(fs, ReadFileParams("a.txt")).value
    assert (value.shown, value.total, value.next_offset) == (2_000, 2_001, 2_000)


def test_a_limit_of_minus_one_means_to_the_end(fs: Filesystem):
    fs.write("a.txt", "x\n" * 1_500)
    assert ask(fs, ReadFileParams("a.txt", limit=-1)).value.shown == 1_500


def test_start_line_counts_from_one(fs: Filesystem):
    fs.write("a.txt", "1\n2\n3\n")
    assert message(fs, "a.txt", start_line=2) == message(fs, "a.txt", offset=1)
    assert message(fs, "a.txt", start_line=2, offset=1) == message(fs, "a.txt", offset=1)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"offset": -1}, "offset must be at least 0: -1"),
        ({"limit": 0}, "must be at least 1: 0"),
        ({"limit": -2}, "must be at least 1: -2"),
        ({"start_line": 0}, "Line numbers start at 1: 0"),
        (
            {"start_line": 3, "offset": 1},
            "offset (1) and start_line (3) disagree; send only one of them",
        ),
    ],
)
def test_a_part_that_cannot_be_is_refused(fs: Filesystem, part: dict[str, Any], said: str):
    fs.write("a.txt", "1\n2\n3\n")
    assert said in refusal(fs, ReadFileParams("a.txt", **part), ToolValidationError)


def test_a_page_past_the_end_is_told_how_long_the_file_is(fs: Filesystem):
    fs.write("a.txt", "1\n2\n3\n")
    assert refusal(fs, ReadFileParams("a.txt", offset=3), ToolValidationError) == (
        "No line 4: 'a.txt' has only 3 lines; use read_file with file_path='a.txt'"
    )


@pytest.mark.parametrize("view", ["auto", "text", "hex", "base64"])
def test_an_empty_file_is_said_to_be_empty(fs: Filesystem, view: str):
    fs.write("a.txt", "")
    assert message(fs, "a.txt", view=view) == "a.txt is empty (0 bytes)"
    assert message(fs, "a.txt", offset=5) == "a.txt is empty (0 bytes)"


def test_paths_are_understood_from_the_root_and_with_the_workspace_before_them(
    own: BaseFilesystem,
):
    own.write("src/a.py", "1\n")
    for given_path in ("/src/a.py", "./src//a.py", f"{own.root.rstrip('/')}/src/a.py"):
        assert message(own, given_path).startswith("src/a.py: lines")


def test_a_path_out_of_the_workspace_is_refused(fs: Filesystem):
    assert "escapes" in refusal(fs, ReadFileParams("../a"), PathEscapeError)


def test_a_directory_is_said_to_be_one_with_the_way_to_list_it(fs: Filesystem):
    fs.write("src/a.py", "")
    assert refusal(fs, ReadFileParams("src"), IsADirectoryError) == (
        "'src' is a directory; to list it: ls with path='src'"
    )


def test_a_link_names_its_target(own: BaseFilesystem):
    own.write("src/a.py", "1\n")
    make_link(own, "src/b.py", "a.py")
    make_link(own, "out", "/etc/passwd")
    assert refusal(own, ReadFileParams("src/b.py"), PermissionError) == (
        "'src/b.py' is a symbolic link to 'a.py'; links are not followed; use its target:"
        " read_file with file_path='src/a.py'"
    )
    assert refusal(own, ReadFileParams("out"), PermissionError) == (
        "'out' is a symbolic link to '/etc/passwd'; links are not followed"
    )


# --- within the budget ---


def test_a_page_ends_at_a_line_when_the_budget_does(fs: Filesystem):
    fs.write("a.txt", "".join(f"line {number:03}\n" for number in range(100)))
    result = ask(fs, ReadFileParams("a.txt"), max_characters=600)
    value = result.value
    assert 10 < value.shown < 100
    assert value.content == "".join(f"line {number:03}\n" for number in range(value.shown))
    assert result.message.endswith(f"offset={value.shown}]")


def test_the_budget_in_tokens_binds_too(fs: Filesystem):
    fs.write("a.txt", "some text here\n" * 1_000)
    assert len(ask(fs, ReadFileParams("a.txt"), max_tokens=200).message) <= 600


@pytest.mark.parametrize("budget", [1, 20, 100, 200])
def test_even_a_tiny_budget_is_kept(fs: Filesystem, budget: int):
    fs.write("a.txt", "x" * 1_000 + "\n" + "y\n" * 100)
    assert ask(fs, ReadFileParams("a.txt"), max_characters=budget).value.shown >= 1


def test_a_long_line_is_cut_and_says_how_to_see_the_rest(fs: Filesystem):
    fs.write("a.js", "é" * 3_000 + "\nshort\n")
    text = message(fs, "a.js")
    assert "é" * 2_000 + " [... 2,000 more bytes]\n     2\tshort\n" in text
    assert "é" * 2_001 not in text
    assert text.endswith(
        "[line 1 is too long to show in full; to read on: read_file with file_path='a.js',"
        " offset=4000, view='base64'; grep shows the text around a match]"
    )
    rest = ask(fs, ReadFileParams("a.js", offset=4_000, limit=2_000, view="base64")).value
    assert base64.b64decode(rest.content).decode() == "é" * 1_000


def test_long_lines_are_counted(fs: Filesystem):
    fs.write("a.js", ("x" * 30 + "\n") * 3)
    assert (
        "[3 lines are too long" in ask(fs, ReadFileParams("a.js"), max_line_characters=20).message
    )


def test_a_minified_file_of_5_mb_costs_little_memory(own: BaseFilesystem):
    own.write("app.min.js", "function(){return 1};" * 250_000 + "\nend\n")
    context = make_context(own)
    tracemalloc.start()
    try:
        result = context.handle(ReadFileParams("app.min.js"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "5,248,000 more bytes" in result.message
    assert result.message.count("\n     2\tend") == 1
    assert peak < 2_500_000


def test_a_page_of_a_large_file_is_read_without_holding_it(own: BaseFilesystem):
    line = "x" * 99 + "\n"
    own.write("big.log", line * 200_000 + "last\n")
    context = make_context(own)
    tracemalloc.start()
    try:
        result = context.handle(ReadFileParams("big.log", start_line=200_001))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.message == "big.log: lines 200001 to 200001 of 200001\n200001\tlast"
    assert peak < 4_000_000


def test_a_foreign_filesystem_gives_the_same_pages_of_a_large_file(fs: Filesystem):
    for _ in range(5):
        fs.write(
            "a.log", "".join(f"{number:05} {'x' * 33}\n" for number in range(1_000)), mode="append"
        )
    value = ask(fs, ReadFileParams("a.log", offset=4_321, limit=1)).value
    assert (value.content, value.total) == (f"00321 {'x' * 33}\n", 5_000)


# --- what text can be ---


def test_crlf_is_not_shown_but_said(fs: Filesystem):
    fs.write("a.txt", "one\r\ntwo\r\n")
    assert message(fs, "a.txt").endswith("\n     1\tone\n     2\ttwo\n[lines end in CRLF]")
    fs.write("a.txt", "one\r\ntwo\nthree\nfour\n")
    assert message(fs, "a.txt").endswith("[some lines end in CRLF]")


def test_a_byte_order_mark_is_not_shown_but_said(fs: Filesystem):
    fs.write_bytes("a.txt", b"\xef\xbb\xbfone\n")
    assert message(fs, "a.txt").endswith("\n     1\tone\n[starts with a UTF-8 byte order mark]")


def test_a_missing_newline_at_the_end_is_said(fs: Filesystem):
    fs.write("a.txt", "one\ntwo")
    assert message(fs, "a.txt").endswith("     2\ttwo\n[no newline at end of file]")
    assert "newline" not in message(fs, "a.txt", limit=1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_decoded(fs: Filesystem, encoding: str):
    fs.write_bytes("a.txt", "größe\nzwei\n".encode(encoding))
    result = ask(fs, ReadFileParams("a.txt"))
    assert (
        f"     1\tgröße\n     2\tzwei\n[{encoding.upper()} text, shown decoded]" in result.message
    )
    assert result.value.encoding == encoding


def test_other_encodings_are_shown_as_far_as_they_can_be(fs: Filesystem):
    fs.write_bytes("a.txt", "une crème brûlée\net puis\n".encode("latin-1"))
    text = message(fs, "a.txt")
    assert "     1\tune cr\ufffdme br\ufffdl\ufffde\n     2\tet puis\n[not valid UTF-8" in text


def test_bytes_that_are_no_text_far_down_are_said_on_their_page_only(fs: Filesystem):
    fs.write_bytes("a.txt", b"fine\n" * 3_000 + b"bad \xff\n")
    assert "not UTF-8" not in message(fs, "a.txt", limit=10)
    assert "[not valid UTF-8" in message(fs, "a.txt", offset=3_000)


def test_a_form_feed_or_a_line_separator_ends_no_line(fs: Filesystem):
    fs.write("a.txt", "one\fstill\u2028still\n")
    assert ask(fs, ReadFileParams("a.txt")).value.total == 1


def test_what_is_shown_can_be_pasted_into_an_edit(fs: Filesystem):
    text = "def f():\n\treturn 1\n\n\ndef g():\n\treturn 2\n"
    fs.write("a.py", text)
    pasted = "\n".join(message(fs, "a.py").split("\n")[1:3])
    outcome = apply_edits(text, [Edit(pasted, "def f():\n\treturn 3")])
    assert outcome.content == text.replace("return 1", "return 3")


# --- several files ---


def test_several_files_are_read_at_once_and_those_that_cannot_be_say_why(fs: Filesystem):
    fs.write("a.txt", "one\n")
    fs.write("b.txt", "two\n")
    result = ask(fs, ReadManyParams(("a.txt", "gone.zip", "b.txt")))
    assert result.success
    assert [each.path for each in result.value.files] == ["a.txt", "b.txt"]
    assert len(result.value.errors) == 1
    assert result.message.startswith(
        "2 files read, 1 failed\n\na.txt: lines 1 to 1 of 1\n     1\tone\n\ngone.zip: No such file"
    )


def test_several_files_share_the_budget(fs: Filesystem):
    for name in "abcd":
        fs.write(name, f"{name} line\n" * 500)
    value = ask(fs, ReadManyParams(tuple("abcd")), max_characters=4_000).value
    assert all(0 < each.shown < 500 for each in value.files)


def test_reading_nothing_of_several_is_a_failure(fs: Filesystem):
    assert not ask(fs, ReadManyParams(("x", "y"))).success
    assert "1 to 50 items: 0" in refusal(fs, ReadManyParams(()), ToolValidationError)


# --- whatever the file ---

_TEXTS = st.text(st.sampled_from("ab\n\r é\t\f\ufeff\u2028"), max_size=300)


def pages(fs: Filesystem, limit: int | None, budget: int) -> Iterator[ReadFileResult]:
    context = make_context(fs, dialect=PLAIN, max_characters=budget)
    offset: int | None = 0
    while offset is not None:
        result = context.handle(ReadFileParams("a", offset=offset, limit=limit, view="text"))
        assert len(result.message) <= budget
        assert result.value is not None
        check_numbers(result.message, result.value)
        yield result.value
        offset = result.value.next_offset


def check_numbers(message: str, page: ReadFileResult) -> None:
    """Check that each line of a page is shown once, with its number and without its end."""
    if page.total:
        lines = page.content.removesuffix("\n").split("\n")
        ends = [line.removesuffix("\r") for line in lines[:-1]]
        last = lines[-1].removesuffix("\r") if page.content.endswith("\n") else lines[-1]
        shown = [*ends, last]
        if page.offset == 0:
            shown[0] = shown[0].removeprefix("\ufeff")
        numbered = [f"{number:>6}\t{line}" for number, line in enumerate(shown, page.offset + 1)]
        cut = re.sub(r" \[\.\.\. [\d,]+ more bytes?\]\n", "\n", message + "\n")
        assert "\n" + "\n".join(numbered) + "\n" in cut


@given(_TEXTS, st.none() | st.integers(1, 20), st.integers(400, 3_000))
def test_pages_put_together_are_the_file(text: str, limit: int | None, budget: int):
    fs = InMemoryFilesystem()
    fs.write("a", text)
    parts = list(pages(fs, limit, budget))
    assert "".join(part.content for part in parts) == text
    total = text.count("\n") + (not text.endswith("\n") and text != "")
    assert sum(part.shown for part in parts) == total
    assert {part.total for part in parts} == {total}


@given(st.lists(st.integers(0, 70_000), max_size=6), st.integers(1, 3))
def test_pages_of_files_larger_than_one_look_are_the_same(lengths: list[int], limit: int):
    text = "".join(f"{number}{'x' * length}\n" for number, length in enumerate(lengths))
    fs = InMemoryFilesystem()
    fs.write_bytes("a", b"")
    for at in range(0, len(text), 48_000):
        fs.write("a", text[at : at + 48_000], mode="append")
    parts = list(pages(fs, limit, 50_000))
    shown = "".join(part.content for part in parts)
    assert shown == "".join(line[:2_000] + "\n" for line in text.split("\n")[:-1])


def test_a_writing_that_takes_more_tokens_is_shown_in_smaller_pages(fs: Filesystem):
    line = "\u6f22\u5b57" * 20
    fs.write("a.txt", "".join(f"{line}{number}\n" for number in range(200)))
    settings = ToolSettings(max_tokens=2_000)
    whole, pages, offset = "", 0, 0
    while offset is not None:
        answer = ask(fs, ReadFileParams("a.txt", offset=offset), settings=settings)
        assert settings.count_tokens(answer.message) <= 2_000
        whole, pages, offset = whole + answer.value.content, pages + 1, answer.value.next_offset
    assert whole == fs.read_bytes("a.txt").content.decode()
    assert pages > 4
    found = ask(fs, GrepParams(line[:2]), settings=settings)
    assert settings.count_tokens(found.message) <= 2_000
    assert found.value.truncated
