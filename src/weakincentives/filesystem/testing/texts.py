"""Text as it is: no line end, mark or character is ever translated."""

import pytest

from weakincentives.filesystem import READ_ENTIRE_FILE, Filesystem
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
    """Text survives, whatever it is made of."""

    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_text_survives(self, fs: Filesystem, text: str) -> None:
        fs.write("a.txt", text)
        assert fs.read("a.txt").content == text
        assert fs.read_bytes("a.txt").content == text.encode()

    @pytest.mark.parametrize("limit", [1, 2, 3])
    @pytest.mark.parametrize("text", AWKWARD_TEXTS.values(), ids=AWKWARD_TEXTS)
    def test_pages_joined_are_the_file(self, fs: Filesystem, text: str, limit: int) -> None:
        fs.write("a.txt", text)
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
