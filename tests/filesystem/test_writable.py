"""Writing: what listeners, quotas and odd input must not do."""

import errno
import pickle
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemEvent,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    TimeLimitError,
)
from weakincentives.filesystem.rooted import RootedDirectory

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
    with pytest.raises(TimeLimitError):
        getattr(fs, search)("text")


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
