"""Conformance of `read` and `read_bytes`: pages, ranges, and text that is never translated."""

from typing import Any

import pytest

from weakincentives.filesystem import (
    DEFAULT_READ_LIMIT,
    READ_ENTIRE_FILE,
    Filesystem,
    ReadBytesResult,
    ReadResult,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite

AWKWARD_TEXTS = {
    "unix": "one\ntwo\n",
    "windows": "one\r\ntwo\r\n",
    "old mac": "one\rtwo\r",
    "mixed": "one\r\ntwo\nthree\rfour\n\r\n",
    "no final newline": "one\ntwo",
    "only newlines": "\n\n\n",
    "form feed": "one\ftwo\n\f\nthree",
    "vertical tab": "one\vtwo\nthree",
    "separators": "a\x1cb\x1dc\x1ed\n",
    "next line": "one\x85two\n",
    "line separator": "one\u2028two\u2029three\n",
    "byte order mark": "\ufeffone\ntwo\n",
    "mark in the middle": "one\n\ufefftwo\n",
    "nul": "a\0b\nc\0\n",
    "end of file": "a\x1ab\n",
    "decomposed": "e\u0301 and é\n",
    "astral": "😀\n𝄞\n",
    "blanks": "  \n\t\n trailing \n",
    "empty": "",
}


class TextTests(ConformanceSuite):
    """Text round-trips unchanged: line endings, byte order marks, any characters."""

    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_text_survives(self, fs: Filesystem, text: str) -> None:
        fs.write("a.txt", text)
        assert fs.read("a.txt").content == text
        assert fs.read_bytes("a.txt").content == text.encode()

    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_pages_joined_are_the_file(self, fs: Filesystem, text: str) -> None:
        fs.write("a.txt", text)
        for limit in (1, 2, 3):
            pages: list[str] = []
            more = True
            while more and len(pages) <= len(text):
                page = fs.read("a.txt", offset=limit * len(pages), limit=limit)
                pages.append(page.content)
                more = page.truncated
            assert "".join(pages) == text
            assert [page.count("\n") for page in pages[:-1]] == [limit] * (len(pages) - 1)

    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_lines_end_at_a_newline_only(self, fs: Filesystem, text: str) -> None:
        fs.write("a.txt", text)
        lines = text.count("\n") + (not text.endswith("\n") and text != "")
        assert fs.read("a.txt").total_lines == lines

    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_appended_text_is_added_as_it_is(self, fs: Filesystem, text: str) -> None:
        fs.write("a.txt", text)
        fs.write("a.txt", text, mode="append")
        assert fs.read("a.txt", limit=READ_ENTIRE_FILE).content == text + text

    @pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "utf-32", "cp1252"])
    def test_a_page_is_the_same_in_another_encoding(self, fs: Filesystem, encoding: str) -> None:
        fs.write_bytes("a.txt", "eins\nzwölf\r\ndrei".encode(encoding))
        assert fs.read("a.txt", encoding=encoding).content == "eins\nzwölf\r\ndrei"
        page = fs.read("a.txt", offset=1, limit=1, encoding=encoding)
        assert (page.content, page.total_lines, page.truncated) == ("zwölf\r\n", 3, True)

    def test_text_in_the_wrong_encoding_is_refused(self, fs: Filesystem) -> None:
        fs.write_bytes("a.txt", "zwölf".encode("latin-1"))
        with pytest.raises(ValueError, match=r"binary content.*read_bytes"):
            fs.read("a.txt")
        with pytest.raises(ValueError, match=r"binary content.*read_bytes"):
            fs.read("a.txt", encoding="ascii")


_EVERY_BYTE = bytes(range(256))
_HUGE = 10**18


class ReadingTests(ConformanceSuite):
    """`read`: pages of whole lines, counted from 0."""

    def test_read_returns_what_was_written(self, fs: Filesystem) -> None:
        fs.write("notes/a.txt", "one\ntwo\nthree")
        expected = ReadResult(
            content="one\ntwo\nthree",
            path="notes/a.txt",
            total_lines=3,
            offset=0,
            limit=DEFAULT_READ_LIMIT,
            truncated=False,
        )
        assert fs.read("notes/a.txt") == expected

    def test_read_reports_the_normal_form_of_the_path(self, fs: Filesystem) -> None:
        fs.write("notes/a.txt", "text")
        assert fs.read("/notes/./x/../a.txt").path == "notes/a.txt"

    @pytest.mark.parametrize(
        ("text", "offset", "limit", "content", "truncated"),
        [
            ("0\n1\n2\n3\n", 1, 2, "1\n2\n", True),
            ("0\n1\n2\n3", 2, 2, "2\n3", False),
            ("0\n1\n", 2, 5, "", False),
            ("0\n1\n", 1, 0, "", True),
        ],
    )
    def test_a_page_is_the_lines_asked_for(
        self, fs: Filesystem, text: str, offset: int, limit: int, content: str, *, truncated: bool
    ) -> None:
        fs.write("a.txt", text)
        lines = len(text.splitlines())
        expected = ReadResult(content, "a.txt", lines, offset, limit, truncated=truncated)
        assert fs.read("a.txt", offset=offset, limit=limit) == expected

    def test_a_page_may_be_asked_for_far_beyond_the_file(self, fs: Filesystem) -> None:
        fs.write("a.txt", "0\n1\n")
        assert fs.read("a.txt", offset=_HUGE, limit=_HUGE).content == ""
        assert fs.read("a.txt", offset=1, limit=_HUGE).content == "1\n"

    def test_a_page_deep_in_a_file_of_many_blocks_is_exact(self, fs: Filesystem) -> None:
        lines = [f"{number:06}\n" for number in range(40_000)]
        for start in range(0, len(lines), 5_000):
            fs.write("a.txt", "".join(lines[start : start + 5_000]), mode="append")
        for offset in (0, 1, 9_361, 9_362, 9_363, 20_000, 39_998):
            page = fs.read("a.txt", offset=offset, limit=3)
            assert page.content == "".join(lines[offset : offset + 3])
            assert page.total_lines == len(lines)

    def test_read_stops_at_the_default_limit(self, fs: Filesystem) -> None:
        fs.write("a.txt", "x\n" * (DEFAULT_READ_LIMIT + 1))
        page = fs.read("a.txt")
        assert page.content.count("x\n") == len(page.content) / 2 == DEFAULT_READ_LIMIT
        assert (page.limit, page.total_lines) == (DEFAULT_READ_LIMIT, DEFAULT_READ_LIMIT + 1)
        assert page.truncated

    def test_read_entire_file_reads_to_the_end(self, fs: Filesystem) -> None:
        text = "x\n" * (DEFAULT_READ_LIMIT + 1)
        fs.write("a.txt", text)
        whole = fs.read("a.txt", limit=READ_ENTIRE_FILE)
        assert len(whole.content) == len(text)
        assert (whole.limit, whole.truncated) == (READ_ENTIRE_FILE, False)
        assert fs.read("a.txt", offset=DEFAULT_READ_LIMIT, limit=-1).content == "x\n"

    @pytest.mark.parametrize(
        ("text", "lines"),
        [("", 0), ("a", 1), ("a\n", 1), ("\n", 1), ("a\nb", 2), ("a\n\n", 2), ("\n\n\n", 3)],
    )
    def test_total_lines_counts_line_ends_and_an_unfinished_line(
        self, fs: Filesystem, text: str, lines: int
    ) -> None:
        fs.write("a.txt", text)
        assert fs.read("a.txt").total_lines == lines

    @pytest.mark.parametrize(("name", "value"), [("offset", -1), ("limit", -2)])
    def test_a_negative_number_is_refused(self, fs: Filesystem, name: str, value: int) -> None:
        fs.write("a.txt", "text")
        arguments: dict[str, Any] = {name: value}
        for call in (fs.read, fs.read_bytes):
            with pytest.raises(ValueError, match=f"{name} must be non-negative"):
                call("a.txt", **arguments)

    def test_read_of_bytes_that_are_no_text_names_read_bytes(self, fs: Filesystem) -> None:
        fs.write_bytes("a.bin", b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"binary content.*read_bytes"):
            fs.read("a.bin")

    def test_read_decodes_only_the_page_asked_for(self, fs: Filesystem) -> None:
        fs.write_bytes("mixed", b"text\n\xff\xfe\nmore\n")
        assert fs.read("mixed", limit=1).content == "text\n"
        assert fs.read("mixed", offset=2).content == "more\n"
        with pytest.raises(ValueError, match="binary content"):
            fs.read("mixed", offset=1, limit=1)

    def test_an_unknown_encoding_is_refused(self, fs: Filesystem) -> None:
        fs.write("a.txt", "text")
        with pytest.raises(ValueError, match="no-such-encoding"):
            fs.read("a.txt", encoding="no-such-encoding")

    def test_an_error_names_the_path(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError, match="dir/gone"):
            fs.read("dir/gone")


class BytesTests(ConformanceSuite):
    """`read_bytes` and `write_bytes`: every byte, and ranges of them."""

    def test_every_byte_survives(self, fs: Filesystem) -> None:
        fs.write_bytes("a.bin", _EVERY_BYTE)
        expected = ReadBytesResult(
            content=_EVERY_BYTE,
            path="a.bin",
            size_bytes=256,
            offset=0,
            limit=READ_ENTIRE_FILE,
            truncated=False,
        )
        assert fs.read_bytes("a.bin") == expected

    @pytest.mark.parametrize(
        ("offset", "limit", "content", "truncated"),
        [
            (10, 3, b"\x0a\x0b\x0c", True),
            (254, 2, b"\xfe\xff", False),
            (0, 0, b"", True),
            *((253, limit, b"\xfd\xfe\xff", False) for limit in (None, READ_ENTIRE_FILE, _HUGE)),
            *((offset, 2, b"", False) for offset in (256, 257, _HUGE)),
        ],
    )
    def test_a_range_is_the_bytes_asked_for(
        self, fs: Filesystem, offset: int, limit: int | None, content: bytes, *, truncated: bool
    ) -> None:
        fs.write_bytes("a.bin", _EVERY_BYTE)
        found = fs.read_bytes("a.bin", offset=offset, limit=limit)
        whole = READ_ENTIRE_FILE if limit is None else limit
        expected = ReadBytesResult(content, "a.bin", 256, offset, whole, truncated=truncated)
        assert found == expected

    def test_text_is_stored_as_utf_8(self, fs: Filesystem) -> None:
        fs.write("a.txt", "é\r\n\u2028😀")
        assert fs.read_bytes("a.txt").content == "é\r\n\u2028😀".encode()
