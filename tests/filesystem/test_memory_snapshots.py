"""Snapshots of the filesystem in memory."""

import gc
import pickle
from dataclasses import replace

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    FilesystemSnapshot,
    InMemoryFilesystem,
    ReadOnlyError,
    SnapshotableFilesystem,
    StateReplaced,
)


def tree_of(fs: InMemoryFilesystem) -> dict[str, object]:
    """Return everything that is in `fs`."""
    found: dict[str, object] = {path.path: None for path in fs.glob("**/")}
    for match in fs.glob("**"):
        stat = fs.stat(match.path)
        content = fs.read_bytes(match.path).content if match.is_file else stat.link_target
        found[match.path] = (stat.permissions, content)
    return found


@pytest.fixture
def fs() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write("src/app.py", "old\r\n")
    fs.mkdir("empty/inside")
    fs._make_link("link", "/etc/passwd")
    fs._store("run.sh", b"#!/bin/sh\n", permissions=0o700)
    return fs


def test_everything_comes_back_and_nothing_else_stays(fs: InMemoryFilesystem) -> None:
    before = tree_of(fs)
    kept = fs.snapshot(tag="before")
    fs.write("src/app.py", "new")
    fs.write("src/more.py", "more")
    fs.delete("empty", recursive=True)
    fs.delete("link")
    fs.move("run.sh", "run")
    fs.restore(kept)
    assert tree_of(fs) == before


def test_a_snapshot_can_be_restored_again_and_out_of_order(fs: InMemoryFilesystem) -> None:
    first = fs.snapshot()
    fs.write("src/app.py", "second")
    second = fs.snapshot()
    fs.restore(first)
    assert fs.read("src/app.py").content == "old\r\n"
    fs.write("src/app.py", "third")
    fs.restore(second)
    assert fs.read("src/app.py").content == "second"
    fs.restore(first)
    assert fs.read("src/app.py").content == "old\r\n"


def test_writing_after_a_restore_does_not_change_the_snapshot(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    fs.restore(kept)
    fs.write("src/app.py", "changed")
    fs.write("src/deep/new.py", "new")
    fs.restore(kept)
    assert fs.read("src/app.py").content == "old\r\n"
    assert not fs.exists("src/deep")


def test_a_snapshot_is_a_value_with_a_reference_of_its_own(fs: InMemoryFilesystem) -> None:
    first, second = fs.snapshot(tag="one"), fs.snapshot()
    assert (first.commit_ref, second.commit_ref) == ("mem-1", "mem-2")
    assert (first.root_path, first.git_dir, first.tag) == ("/", None, "one")
    assert pickle.loads(pickle.dumps(first)) == first
    assert str(first) == "one (mem-1 of /)"
    assert isinstance(fs, SnapshotableFilesystem)


def test_a_copy_of_the_value_restores_while_the_value_lives(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    stored = FilesystemSnapshot(
        kept.snapshot_id, kept.created_at, kept.commit_ref, kept.root_path, None, "stored"
    )
    fs.write("src/app.py", "new")
    fs.restore(stored)
    assert fs.read("src/app.py").content == "old\r\n"
    assert stored == replace(kept, tag="stored")


def test_a_dropped_snapshot_is_freed_and_unknown(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    stored = replace(kept, tag="stored")
    del kept
    gc.collect()
    assert fs._kept == {}
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(stored)
    assert fs.read("src/app.py").content == "old\r\n"


def test_a_snapshot_of_another_filesystem_is_refused(fs: InMemoryFilesystem) -> None:
    other = InMemoryFilesystem()
    taken, mine = other.snapshot(), fs.snapshot()
    assert taken.commit_ref == mine.commit_ref
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(taken)
    assert fs.exists("src/app.py")


def test_a_read_only_filesystem_is_not_restored() -> None:
    fs = InMemoryFilesystem(read_only=True)
    with pytest.raises(ReadOnlyError):
        fs.restore(fs.snapshot())


def test_a_restore_is_told(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    told: list[object] = []
    fs.subscribe(told.append)
    fs.restore(kept)
    assert told == [StateReplaced("restore", kept.commit_ref)]
    assert str(told[0]) == ". replaced by restore of mem-1"


def test_a_view_shows_the_state_and_does_not_move(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    fs.write("src/app.py", "new")
    view = fs.view(kept)
    assert view.read("src/app.py").content == "old\r\n"
    assert view.read_only
    fs.delete("/", recursive=True)
    assert view.grep("old")[0].path == "src/app.py"
