"""Lines and pages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.filesystem import BytesContent, Content
from weakincentives.filesystem.text import BLOCK, LineIndex, read_page


class Counted(BytesContent):
    """Content that remembers how much was read of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.largest = 0

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        self.largest = max(self.largest, len(data))
        return data


def lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def page_of(data: bytes, offset: int, limit: int, encoding: str = "utf-8") -> tuple[str, int]:
    text, total, exact = read_page(BytesContent(data), offset, limit, encoding)
    assert exact
    return text, total


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a", 1),
        ("a\n", 1),
        ("\n", 1),
        ("a\nb", 2),
        ("a\r\nb\r\n", 2),
        ("a\x0cb\u2028c", 1),
    ],
)
def test_a_line_ends_at_a_newline_and_nowhere_else(text: str, count: int) -> None:
    assert page_of(text.encode(), 0, -1) == (text, count)


@given(st.text(alphabet="ab\n\r\x0c\u2028\u00e9"), st.integers(1, 5))
def test_pages_joined_are_the_file(text: str, limit: int) -> None:
    total = page_of(text.encode(), 0, 0)[1]
    pages = [page_of(text.encode(), at, limit)[0] for at in range(0, total, limit)]
    assert "".join(pages) == text


@given(st.binary(max_size=200), st.integers(0, 40), st.integers(-1, 40))
def test_a_page_is_the_lines_asked_for(data: bytes, offset: int, limit: int) -> None:
    lines = lines_of(data)
    stop = None if limit == -1 else offset + limit
    expected = b"".join(lines[offset:stop]).decode("iso8859-1")
    assert page_of(data, offset, limit, "iso8859-1") == (expected, len(lines))


@given(
    st.lists(st.integers(0, 3 * BLOCK // 4), max_size=8),
    st.booleans(),
    st.integers(0, 10),
    st.integers(-1, 10),
)
def test_a_large_file_is_paged_like_a_small_one(
    lengths: list[int], ends: bool, offset: int, limit: int
) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths) + b"y" * (0 if ends else 2 * BLOCK)
    lines = lines_of(data)
    stop = None if limit == -1 else offset + limit
    text, total = page_of(data, offset, limit)
    assert total == len(lines)
    assert text.encode() == b"".join(lines[offset:stop])


def test_a_page_of_a_large_file_is_read_without_the_file() -> None:
    content = Counted(b"a line of text\n" * 1_000_000)
    page = read_page(content, 500_000, 10, "utf-8")
    assert page == ("a line of text\n" * 10, 1_000_000, True)
    assert content.largest <= 16 * BLOCK


def test_with_an_index_only_the_page_is_read() -> None:
    index = LineIndex()
    assert index.count(Counted(b"a line of text\n" * 100_000)) == (100_000, True)
    content = Counted(b"a line of text\n" * 100_000)
    assert index.find(50_000, content) == 50_000 * 15
    assert content.largest <= BLOCK


@pytest.mark.parametrize("offset", [10**6, 10**30])
@pytest.mark.parametrize("data", [b"", b"a\nb\n", b"x\n" * BLOCK])
def test_past_the_end_there_is_nothing(data: bytes, offset: int) -> None:
    assert page_of(data, offset, 10**30)[0] == ""


def test_only_the_page_must_be_text() -> None:
    data = b"fine\n\xff\xfe\n"
    assert page_of(data, 0, 1) == ("fine\n", 2)
    with pytest.raises(UnicodeError):
        page_of(data, 1, 1)


def test_an_encoding_with_wide_characters_is_paged_by_its_own_lines() -> None:
    data = "one\ntwo\n\u0a0a\n".encode("utf-16")
    assert page_of(data, 1, 1, "utf-16") == ("two\n", 3)


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="aé\r\u0a0a\u2028\U0001f600", max_size=9), max_size=12),
    st.booleans(),
    st.integers(0, 15),
    st.integers(-1, 15),
    st.sampled_from([1, 7, BLOCK]),
)
def test_an_encoding_with_wide_characters_is_paged_like_any_other(
    texts: list[str], ends: bool, offset: int, limit: int, block: int
) -> None:
    text = "".join(each + "\n" for each in texts) + ("" if ends else "end")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weakincentives.filesystem.text.BLOCK", block)
        found = page_of(text.encode("utf-16"), offset, limit, "utf-16")
    assert found == page_of(text.encode(), offset, limit)


def test_the_byte_order_mark_stays() -> None:
    assert page_of(b"\xef\xbb\xbfa\n", 0, -1)[0] == "\ufeffa\n"


def test_content_can_be_used_in_a_with_statement() -> None:
    content: Content = BytesContent(b"ab")
    with content as opened:
        assert opened.read(1, 5) == b"b"
