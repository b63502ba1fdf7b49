"""`line_start`: the byte offset of a line."""

from pathlib import Path

import pytest

from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


def test_a_line_begins_after_the_line_end_before_it(fs: BaseFilesystem):
    fs.write("a", "one\r\n\nthree")
    assert [fs.line_start("a", line) for line in range(5)] == [
        (0, 3, True), (5, 3, True), (6, 3, True), (11, 3, True), (11, 3, True),
    ]  # fmt: skip


def test_the_lines_of_a_large_file_are_found(fs: BaseFilesystem):
    for _ in range(5):
        fs.write("a", "x" * 9 + "\n" * 3_000, mode="append")
    text = fs.read_bytes("a").content
    for line in (0, 1, 3_000, 3_001, 14_999, 15_000):
        start, total, exact = fs.line_start("a", line)
        assert (total, exact) == (15_000, True)
        assert text[:start].count(b"\n") == line


def test_what_has_no_lines_is_refused(fs: BaseFilesystem):
    fs.mkdir("d")
    with pytest.raises(IsADirectoryError):
        fs.line_start("d", 0)
    with pytest.raises(FileNotFoundError):
        fs.line_start("gone", 0)
    with pytest.raises(ValueError, match="non-negative: -1"):
        fs.line_start("d", -1)
