"""Writing: listeners, quotas and odd input."""

import errno
import pickle
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    BaseFilesystem,
    FilesystemEvent,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    TransactionalFilesystem,
)
from weakincentives.posix.rooted import RootedDirectory

SMALL = Limits(max_total_bytes=10, max_files=2)


@pytest.fixture(params=["memory", "host"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    if request.param == "memory":
        return InMemoryFilesystem(limits=SMALL)
    return HostFilesystem(tmp_path, limits=SMALL)


def test_a_move_into_new_directories_is_bound_by_the_quota(limited: BaseFilesystem) -> None:
    limited.write("a", "")
    limited.write("b", "")
    with pytest.raises(LimitExceededError, match="quota"):
        limited.move("a", "d/e/a")
    assert [entry.name for entry in limited.list()] == ["a", "b"]


def test_a_copy_that_shrinks_the_workspace_is_always_possible(limited: BaseFilesystem) -> None:
    limited.write("a", "x")
    limited.write("b", "y" * 9)
    limited.copy("a", "b", overwrite=True)
    assert limited.read("b").content == "x"


def test_a_listener_hears_of_what_was_written_even_if_it_is_gone(tmp_path: Path) -> None:
    fs = HostFilesystem(tmp_path)
    told: list[FilesystemEvent] = []
    fs.subscribe(told.append)
    fs.write("a", "old")

    def vanish(event: FilesystemEvent) -> None:
        (tmp_path / "a").unlink(missing_ok=True)

    fs._listeners._entries = ((vanish,), *fs._listeners._entries)
    fs.write("a", "new")
    assert isinstance(told[-1], FileWritten)
    assert (told[-1].after_size, told[-1].after_hash is None) == (3, False)


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


LONG = b"x" * (3 * MAX_WRITE_LENGTH)


def test_the_content_of_a_file_is_replaced_however_long_it_is(fs: BaseFilesystem) -> None:
    fs.write("dir/a", "old")
    told: list[FilesystemEvent] = []
    fs.subscribe(told.append)
    result = fs.replace_content("/dir/./a", LONG)
    assert (result.path, result.bytes_written, result.created) == ("dir/a", len(LONG), False)
    assert fs.read_bytes("dir/a").content == LONG
    (event,) = told
    assert isinstance(event, FileWritten)
    assert (event.path, event.before_size, event.after_size) == ("dir/a", 3, len(LONG))


def test_replaced_content_keeps_the_permissions(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o751)
    HostFilesystem(tmp_path).replace_content("run.sh", LONG)
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o751


def test_replaced_content_goes_back_with_a_savepoint(fs: TransactionalFilesystem) -> None:
    fs.write("a", "old")
    with fs.savepoint() as point:
        fs.replace_content("a", LONG)
        point.rollback()
    assert fs.read("a").content == "old"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gone", FileNotFoundError),
        ("dir", IsADirectoryError),
        ("link", PermissionError),
        ("dir/../../x", PermissionError),
        (".", ValueError),
    ],
)
def test_only_the_content_of_a_file_is_replaced(
    tmp_path: Path, path: str, error: type[Exception]
) -> None:
    fs = HostFilesystem(tmp_path)
    fs.write("dir/a", "old")
    (tmp_path / "link").symlink_to("dir/a")
    with pytest.raises(error):
        fs.replace_content(path, b"new")
    assert fs.read("dir/a").content == "old"
    assert [entry.name for entry in fs.list()] == ["dir", "link"]


def test_replaced_content_is_bound_by_the_quota(limited: BaseFilesystem) -> None:
    limited.write("a", "12345")
    with pytest.raises(LimitExceededError, match="quota"):
        limited.replace_content("a", b"12345678901")
    limited.replace_content("a", b"1234567890")
    assert limited.read("a").content == "1234567890"


def test_a_read_only_filesystem_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ReadOnlyError):
        HostFilesystem(tmp_path, read_only=True).replace_content("a", b"new")


@pytest.mark.parametrize("content", [None, b"bytes", 3])
def test_only_text_is_text(content: object) -> None:
    fs = InMemoryFilesystem()
    with pytest.raises(TypeError, match="Content must be text"):
        fs.write("a", content)  # pyright: ignore[reportArgumentType] # that is the point
    assert fs.list() == ()


def test_an_empty_root_is_refused() -> None:
    with pytest.raises(ValueError, match="empty path"):
        HostFilesystem("")


def test_metadata_can_be_pickled(tmp_path: Path) -> None:
    fs = HostFilesystem(tmp_path)
    fs.write("a", "1")
    stat = fs.stat("a")
    assert pickle.loads(pickle.dumps(stat)) == stat


def test_a_glob_has_an_end_and_says_so() -> None:
    fs = InMemoryFilesystem(limits=Limits(max_glob_matches=2))
    for name in "dcba":
        fs.write(name, "")
    found = fs.glob("*")
    assert [match.path for match in found] == ["a", "b"]
    assert found.truncated


@pytest.mark.parametrize("search", ["glob", "grep"])
def test_every_search_has_a_time(search: str) -> None:
    fs = InMemoryFilesystem(limits=Limits(max_search_seconds=0))
    fs.write("a/b", "text")
    found = getattr(fs, search)("text")
    assert (found, found.reason) == ((), "time limit")
    assert found.coverage.missed_paths == ("./",)


def test_a_search_does_not_lose_files_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = HostFilesystem(tmp_path)
    fs.write("a", "needle")

    def exhausted(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(RootedDirectory, "open_listed", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        fs.grep("needle")


def test_files_of_others_are_never_swept(tmp_path: Path) -> None:
    mine = tmp_path / ".wink-tmp-notes.txt"
    mine.write_text("keep me")
    fs = HostFilesystem(tmp_path)
    assert fs.list() == ()
    assert mine.read_text() == "keep me"


def test_an_ignore_file_may_begin_with_a_byte_order_mark() -> None:
    fs = InMemoryFilesystem()
    fs.write(".gitignore", "\ufeff*.log\n")
    fs.write("a.log", "")
    assert [match.path for match in fs.glob("*", use_ignore_files=True)] == [".gitignore"]
