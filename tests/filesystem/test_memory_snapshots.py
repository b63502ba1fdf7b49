"""Snapshots of the filesystem in memory: what the suites do not ask of every backend."""

import gc
from dataclasses import replace

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, InMemoryFilesystem
from weakincentives.filesystem.nodes import DirectoryNode


@pytest.fixture
def fs() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write("src/app.py", "old\r\n")
    fs.mkdir("empty/inside")
    fs._make_link("link", "/etc/passwd")
    fs._store("run.sh", b"#!/bin/sh\n", permissions=0o700)
    return fs


def test_a_snapshot_is_numbered(fs: InMemoryFilesystem) -> None:
    first, second = fs.snapshot(tag="one"), fs.snapshot()
    assert (first.commit_ref, second.commit_ref) == ("mem-1", "mem-2")
    assert (first.root_path, first.git_dir, first.tag) == ("/", None, "one")
    assert str(first) == "one (mem-1 of /)"


def test_a_snapshot_shares_what_has_not_changed(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    fs.write("src/app.py", "new")
    then, now = fs._kept_root(kept), fs._root_node
    assert then.children.get("empty") is now.children.get("empty")
    assert then.children.get("run.sh") is now.children.get("run.sh")
    assert then.children.get("src") is not now.children.get("src")


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


def test_a_view_lives_on_when_its_snapshot_is_dropped(fs: InMemoryFilesystem) -> None:
    view = fs.view(fs.snapshot())
    gc.collect()
    fs.delete("/", recursive=True)
    assert view.read_only
    assert view.grep("old")[0].path == "src/app.py"


def test_the_number_alone_does_not_make_a_snapshot_ours(fs: InMemoryFilesystem) -> None:
    other = InMemoryFilesystem()
    taken, mine = other.snapshot(), fs.snapshot()
    assert taken.commit_ref == mine.commit_ref
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(taken)
    assert fs.exists("src/app.py")


def test_a_parent_that_is_made_for_a_path_has_its_permissions_of_then(
    fs: InMemoryFilesystem,
) -> None:
    node = fs._find("src")
    assert isinstance(node, DirectoryNode)
    node.permissions = 0o700
    kept = fs.snapshot()
    fs.delete("src", recursive=True)
    fs.restore(kept, paths=["src/app.py"])
    assert fs.stat("src").permissions == 0o700


@pytest.mark.parametrize("path", ["link/below", "run.sh/below"])
def test_a_path_below_what_is_no_directory_is_nowhere(fs: InMemoryFilesystem, path: str) -> None:
    kept = fs.snapshot()
    with pytest.raises(SnapshotRestoreError, match="neither in the snapshot nor in the workspace"):
        fs.restore(kept, paths=[path])


def test_a_link_in_the_way_is_not_followed_by_a_partial_restore(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    fs.delete("src", recursive=True)
    fs._make_link("src", "empty")
    with pytest.raises(SnapshotRestoreError, match="'src' is no directory any more"):
        fs.restore(kept, paths=["src/app.py"])
    assert fs.list("empty/inside") == ()
    assert fs.stat("src").link_target == "empty"


def test_what_is_in_use_is_counted_after_a_partial_restore(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    before = fs._usage()
    fs.delete("src", recursive=True)
    fs.write("new/file", "123")
    fs.restore(kept, paths=["src", "new"])
    assert fs._usage() == before
