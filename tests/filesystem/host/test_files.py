"""Open files of the host, and when a cached line index may be reused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.host import files as hostfile
from weakincentives.filesystem.host.files import (
    HostFile,
    LineIndexes,
    identity_of,
    outlast_timestamp,
)

LINE = "a line of text\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "f"
    target.write_text(LINE * 10_000)
    settle(target)
    return target


def settle(path: Path, seconds: float = 3_600.0) -> None:
    """Let a file look as if nobody had touched it for long; its change time stays."""
    old = path.stat().st_mtime - seconds
    os.utime(path, (old, old))


def opened(path: Path, indexes: LineIndexes) -> HostFile:
    descriptor = os.open(path, os.O_RDONLY)
    return HostFile(descriptor, os.fstat(descriptor), indexes)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock of the module forward."""
    now = hostfile.time.time_ns

    def move(seconds: float) -> None:
        monkeypatch.setattr(hostfile.time, "time_ns", lambda: now() + int(seconds * 1e9))

    return move


def test_an_index_is_remembered_once_the_file_has_settled(
    path: Path, later: Callable[[float], None]
) -> None:
    later(10)
    indexes = LineIndexes()
    with opened(path, indexes) as first, opened(path, indexes) as second:
        assert first.line_index() is second.line_index()
        assert first.line_index().count(first) == (10_000, True)


def test_an_index_of_a_file_just_changed_is_not_remembered(path: Path) -> None:
    path.write_text(LINE * 10)
    indexes = LineIndexes()
    with opened(path, indexes) as first, opened(path, indexes) as second:
        assert first.line_index() is not second.line_index()


def test_times_of_whole_seconds_settle_later(
    path: Path, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes = LineIndexes()
    with opened(path, indexes) as content:
        seconds = content.identity[4] // 1_000_000_000 * 1_000_000_000
        coarse = (*content.identity[:3], seconds, seconds, content.identity[5])
        monkeypatch.setattr(hostfile.time, "time_ns", lambda: seconds + 1_000_000_000)
        assert not hostfile.is_stable(coarse)
        monkeypatch.setattr(hostfile.time, "time_ns", lambda: seconds + 3_000_000_000)
        assert hostfile.is_stable(coarse)


def test_a_change_is_noticed_even_if_time_and_size_are_put_back(
    path: Path, later: Callable[[float], None]
) -> None:
    later(10)
    indexes = LineIndexes()
    before = path.stat()
    with opened(path, indexes) as content:
        assert content.line_index().count(content) == (10_000, True)
    path.write_text("\n" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with opened(path, indexes) as content:
        assert content.size == before.st_size
        assert content.line_index().count(content) == (before.st_size, True)


def test_a_file_that_replaced_another_has_an_index_of_its_own(
    path: Path, later: Callable[[float], None]
) -> None:
    later(10)
    indexes = LineIndexes()
    with opened(path, indexes) as content:
        assert content.line_index().count(content) == (10_000, True)
        other = path.with_name("g")
        other.write_text(LINE * 20_000)
        settle(other)
        other.rename(path)
        assert content.line_index().count(content) == (10_000, True)
    with opened(path, indexes) as content:
        assert content.line_index().count(content) == (20_000, True)


def test_only_the_last_indexes_are_remembered(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    indexes = LineIndexes()
    paths = [tmp_path / str(number) for number in range(70)]
    for each in paths:
        each.write_text(LINE)
        settle(each)
    later(10)
    for each in paths:
        with opened(each, indexes) as content:
            content.line_index()
    assert len(indexes._indexes) == 64
    with opened(paths[-1], indexes) as first, opened(paths[-1], indexes) as second:
        assert first.line_index() is second.line_index()


def test_reading_stays_within_the_size_at_opening(path: Path) -> None:
    with opened(path, LineIndexes()) as content:
        with path.open("a") as file:
            file.write("more")
        assert content.size == 150_000
        assert len(content.read(0, 10**9)) == 150_000
        assert content.read(149_990, 100) == b"e of text\n"
        assert content.read(150_000, 4) == b""
        assert content.read(10**12, 4) == b""


def test_a_file_stays_readable_when_its_name_goes(path: Path) -> None:
    with opened(path, LineIndexes()) as content:
        path.unlink()
        assert content.read(0, 15) == LINE.encode()


def test_a_file_is_closed_once(path: Path) -> None:
    content = opened(path, LineIndexes())
    with content:
        pass
    with pytest.raises(OSError, match="Bad file"):
        content.read(0, 1)


def test_a_change_after_the_tick_of_the_clock_has_a_later_timestamp(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    for _ in range(20):
        path.write_text("before")
        before = path.stat().st_ctime_ns
        assert outlast_timestamp(directory, before)
        path.write_text("after!")
        assert path.stat().st_ctime_ns > before
    assert not outlast_timestamp(directory, path.stat().st_ctime_ns + 10**15)
    os.close(directory)


def test_the_identity_is_that_of_the_stat(path: Path) -> None:
    with opened(path, LineIndexes()) as content:
        assert content.identity == identity_of(path.stat())


def test_a_page_after_a_quick_rewrite_is_never_of_the_old_index(tmp_path: Path) -> None:
    fs = HostFilesystem(tmp_path)
    path = tmp_path / "f"
    for number in range(1, 30):
        path.write_bytes(b"x" * (100_000 - number) + b"\n" * number)
        assert fs.read("f", limit=1).total_lines == number
    fs.close()
