"""Snapshots in memory: behaviour beyond the conformance suites."""

import copy
import gc
import pickle
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import (
    MAX_MEMORY_SNAPSHOTS,
    FilesystemSnapshot,
    InMemoryFilesystem,
)
from weakincentives.filesystem.memory.nodes import DirectoryNode
from weakincentives.runtime import checkpoint, rollback_to
from weakincentives.runtime.session import Session, Snapshot


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
    then, now = fs._snapshot_root(kept), fs._root_node
    assert then.children.get("empty") is now.children.get("empty")
    assert then.children.get("run.sh") is now.children.get("run.sh")
    assert then.children.get("src") is not now.children.get("src")


def test_a_copy_of_the_value_restores(fs: InMemoryFilesystem) -> None:
    kept = fs.snapshot()
    stored = FilesystemSnapshot(
        kept.snapshot_id, kept.created_at, kept.commit_ref, kept.root_path, None, "stored"
    )
    fs.write("src/app.py", "new")
    fs.restore(stored)
    assert fs.read("src/app.py").content == "old\r\n"
    assert stored == replace(kept, tag="stored")


def test_a_snapshot_of_a_session_restores_when_nobody_holds_it(fs: InMemoryFilesystem) -> None:
    session = Session()
    text = checkpoint(session, fs).to_json()
    session[FilesystemSnapshot].clear()
    gc.collect()
    fs.write("src/app.py", "new")
    rollback_to(session, Snapshot.from_json(text, [FilesystemSnapshot]), fs)
    assert fs.read("src/app.py").content == "old\r\n"


@pytest.mark.parametrize("how", ["value", "id", "text"])
def test_a_snapshot_is_freed_when_it_is_forgotten(fs: InMemoryFilesystem, how: str) -> None:
    kept, other = fs.snapshot(), fs.snapshot()
    said = {"value": kept, "id": kept.snapshot_id, "text": str(kept.snapshot_id)}[how]
    fs.history.forget(said, uuid4(), "no id at all")
    assert fs.history.list() == [other]
    for refused in (fs.restore, fs.view, fs.preview):
        with pytest.raises(SnapshotRestoreError, match=r"Unknown snapshot: .* was forgotten"):
            refused(kept)
    assert fs.read("src/app.py").content == "old\r\n"
    fs.restore(other)


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    fs = InMemoryFilesystem(max_snapshots=2)
    kept: list[FilesystemSnapshot] = []
    for number in range(4):
        fs.write("number", str(number))
        kept.append(fs.snapshot())
    assert fs.history.list() == kept[2:]
    with pytest.raises(SnapshotRestoreError, match=r"was forgotten \(max_snapshots=2\)"):
        fs.restore(kept[1])
    assert fs.read("number").content == "3"
    fs.restore(kept[2])
    assert fs.read("number").content == "2"


def test_a_thousand_are_kept_by_default_and_all_if_asked() -> None:
    default, endless = InMemoryFilesystem(), InMemoryFilesystem(max_snapshots=None)
    for _ in range(MAX_MEMORY_SNAPSHOTS + 1):
        default.snapshot()
        endless.snapshot()
    assert len(default.history.list()) == MAX_MEMORY_SNAPSHOTS == 1_000
    assert len(endless.history.list()) == 1_001


@pytest.mark.parametrize("number", [0, -1])
def test_a_bound_that_keeps_nothing_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="max_snapshots must be at least 1, or None"):
        InMemoryFilesystem(max_snapshots=number)


def test_old_snapshots_are_pruned_as_on_the_host(fs: InMemoryFilesystem) -> None:
    kept = [fs.snapshot() for _ in range(4)]
    assert fs.history.prune(before=kept[0].created_at) == []
    assert fs.history.prune(keep=3) == kept[:1]
    assert fs.history.prune(keep=1, before=datetime.now(UTC) + timedelta(1)) == kept[1:3]
    assert fs.history.list() == kept[3:]
    with pytest.raises(ValueError, match="prune needs keep= or before="):
        fs.history.prune()


def test_what_was_forgotten_long_ago_is_still_refused(fs: InMemoryFilesystem) -> None:
    first = fs.snapshot()
    for _ in range(10_001):
        fs.history.forget(fs.snapshot())
    fs.history.forget(first)
    oldest_known = len(fs.history._forgotten)
    assert oldest_known == 10_000
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(first)


def test_a_value_with_the_number_of_another_one_is_refused(fs: InMemoryFilesystem) -> None:
    first, second = fs.snapshot(), fs.snapshot()
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(replace(first, commit_ref=second.commit_ref))


def test_a_forgotten_state_frees_its_memory(fs: InMemoryFilesystem) -> None:
    tracemalloc.start()
    try:
        fs._store("large", bytes(4_000_000))
        kept = fs.snapshot()
        fs.delete("large")
        held, _ = tracemalloc.get_traced_memory()
        fs.history.forget(kept)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held > 4_000_000 > left


def test_threads_take_and_forget_at_the_same_time(fs: InMemoryFilesystem) -> None:
    def work(_: int) -> None:
        for _ in range(200):
            kept = fs.snapshot()
            fs.history.list()
            fs.history.forget(kept)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert fs.history.list() == []


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
    with pytest.raises(SnapshotRestoreError, match="'src' is not a directory any more"):
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


@pytest.mark.parametrize("wrong", [True, 1.5, "3"])
def test_a_bound_that_is_no_whole_number_is_refused(wrong: int) -> None:
    with pytest.raises(TypeError, match="max_snapshots must be an integer, or None"):
        InMemoryFilesystem(max_snapshots=wrong)


def test_a_pinned_snapshot_outlives_the_bound_and_then_goes() -> None:
    fs = InMemoryFilesystem(max_snapshots=1)
    pinned = fs.snapshot()
    unpin, again = fs.pin(pinned), fs.pin(pinned)
    fs.pin(replace(pinned, snapshot_id=uuid4()))  # another's, with the same number: no effect
    later = [fs.snapshot() for _ in range(3)]
    assert fs.history.list() == [pinned, later[-1]]
    assert fs.history.prune(keep=0) == [later[-1]]
    with pytest.raises(SnapshotError, match="an open transaction needs it for rollback"):
        fs.history.forget(pinned)
    latest = fs.snapshot()
    unpin()
    unpin()
    assert fs.history.list() == [pinned, latest]
    again()
    assert fs.history.list() == [latest]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_filesystem_cannot_be_copied(how: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="InMemoryFilesystem cannot be copied or pickled"):
        how(InMemoryFilesystem())
