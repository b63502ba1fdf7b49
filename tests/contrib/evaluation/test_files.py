"""The files of one evaluation: reads go through, writes are queued and applied all or none."""

import dataclasses

import pytest

from weakincentives.contrib.evaluation import DEFAULT_EVAL_LIMITS, FilesystemWorkspace
from weakincentives.contrib.evaluation.files import QueuedFiles
from weakincentives.filesystem import InMemoryFilesystem, LimitExceededError, PathEscapeError


@pytest.fixture
def fs() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write("data/a.txt", "one\n")
    return fs


@pytest.fixture
def files(fs: InMemoryFilesystem) -> QueuedFiles:
    return QueuedFiles(FilesystemWorkspace(fs), DEFAULT_EVAL_LIMITS)


def test_a_write_is_visible_to_the_code_and_to_nobody_else(
    fs: InMemoryFilesystem, files: QueuedFiles
) -> None:
    files.write_text("new/b.txt", "two")
    assert files.read_text("new/b.txt") == "two"
    assert files.stat("new/b.txt").size_bytes == 3
    assert files.exists("new")
    assert files.stat("new").is_directory
    assert [each.name for each in files.list()] == ["data", "new"]
    assert [each.name for each in files.list("new")] == ["b.txt"]
    assert not fs.exists("new/b.txt")
    files.apply()
    assert fs.read("new/b.txt").content == "two"


def test_appends_add_to_what_is_there(fs: InMemoryFilesystem, files: QueuedFiles) -> None:
    files.write_text("data/a.txt", "two\n", "append")
    files.write_text("data/a.txt", "three\n", "append")
    assert files.read_text("data/a.txt") == "one\ntwo\nthree\n"
    assert files.read_bytes("data/a.txt") == b"one\ntwo\nthree\n"
    files.apply()
    assert fs.read("data/a.txt").content == "one\ntwo\nthree\n"


def test_create_fails_on_existing_and_on_queued_files(files: QueuedFiles) -> None:
    files.write_text("b.txt", "", "create")
    for path in ("data/a.txt", "b.txt"):
        with pytest.raises(FileExistsError):
            files.write_text(path, "", "create")


def test_a_failing_write_undoes_those_before_it(fs: InMemoryFilesystem, files: QueuedFiles) -> None:
    files.write_text("b.txt", "two")
    files.write_text("data/a.txt/c.txt", "below a file")
    with pytest.raises(OSError, match=r"a\.txt"):
        files.apply()
    assert not fs.exists("b.txt")


def test_limits_are_checked_when_the_code_calls(fs: InMemoryFilesystem) -> None:
    limits = dataclasses.replace(
        DEFAULT_EVAL_LIMITS,
        max_writes=2,
        max_write_length=5,
        max_read_bytes=8,
        max_total_read_bytes=8,
    )
    files = QueuedFiles(FilesystemWorkspace(fs), limits)
    with pytest.raises(LimitExceededError):
        files.write_text("b", "123456")
    files.write_text("b", "123")
    with pytest.raises(LimitExceededError):
        files.write_text("b", "456", "append")
    files.make_directory("d")
    with pytest.raises(LimitExceededError):
        files.write_text("c", "")
    assert files.read_text("data/a.txt") == files.read_text("data/a.txt") == "one\n"
    with pytest.raises(LimitExceededError):
        files.read_text("data/a.txt")
    fs.write("large.txt", "x" * 9)
    with pytest.raises(LimitExceededError):
        files.read_bytes("large.txt")


def test_paths_stay_inside(files: QueuedFiles) -> None:
    with pytest.raises(PathEscapeError):
        files.read_text("../secret")
    with pytest.raises(PathEscapeError):
        files.write_text("../secret", "")
    with pytest.raises(ValueError, match="lone surrogate"):
        files.write_text("a", "\ud800")


def test_directories_are_queued_too(fs: InMemoryFilesystem, files: QueuedFiles) -> None:
    with pytest.raises(FileNotFoundError):
        files.make_directory("x/y")
    files.make_directory("x/y", parents=True)
    files.make_directory("x/y", exist_ok=True)
    with pytest.raises(FileExistsError):
        files.make_directory("x")
    assert list(files.list("x/y")) == []
    files.apply()
    assert fs.stat("x/y").is_directory
