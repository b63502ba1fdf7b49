"""Snapshot history: forgetting, pruning, and the detection and repair of damage."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.posix.forks import KILLED, ends, in_a_child, is_killed_at
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem, InMemoryFilesystem

pytestmark = pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def fs(root: Path, tmp_path: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        yield fs


def again(fs: HostFilesystem) -> HostFilesystem:
    """Return another instance, as another process would have it."""
    return HostFilesystem(fs.root, git_dir=Path(fs.root).parent / "store")


def break_packs(fs: HostFilesystem, content: bytes) -> None:
    """Change `content`, which is stored unpacked, wherever it is."""
    for path in (Path(fs.root).parent / "store" / "objects" / "pack").glob("*.pack"):
        data = path.read_bytes()
        if content in data:
            path.write_bytes(data.replace(content, content[::-1]))


# --- damage ---


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_snapshot_does_not_build_on_what_is_damaged(
    root: Path, tmp_path: Path, exclusive: bool, other: bool
) -> None:
    with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=exclusive) as fs:
        fs.write("a", "precious")
        fs.write("b", "1")
        fs.snapshot()
        break_packs(fs, b"precious")
        with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=exclusive) as second:
            taker = second if other else fs
            taker.write("b", "2")
            kept = taker.snapshot()
            taker.delete("a")
            taker.restore(kept)
            assert taker.read("a").content == "precious"
    with again(fs) as fresh:
        assert list(fresh.history.verify()) == []  # both snapshots hold the same content
        fresh.history.gc()
        assert fresh.history.size().packs == 1


def test_damage_that_no_snapshot_can_mend_is_named_with_all_that_need_it(
    fs: HostFilesystem,
) -> None:
    fs.write("d/a", "precious")
    first = fs.snapshot()
    fs.write("b", "1")
    second = fs.snapshot()
    fs.write("d/a", "other")
    third = fs.snapshot()
    break_packs(fs, b"precious")
    problems = fs.history.verify()
    assert {each.snapshot_id for each in problems} == {
        str(each.snapshot_id) for each in (first, second)
    }
    assert all("File is damaged: 'd/a'" in each.text for each in problems)
    with pytest.raises(SnapshotError, match="forget the snapshots that need it") as caught:
        fs.history.gc()
    assert str(first.snapshot_id) in str(caught.value)
    assert str(third.snapshot_id) not in str(caught.value)
    fs.history.forget(*(each.snapshot_id for each in problems if each.snapshot_id))
    fs.history.gc()
    assert list(fs.history.list()) == [third]
    assert list(fs.history.verify()) == []


def test_a_snapshot_that_cannot_be_listed_can_be_forgotten(
    fs: HostFilesystem, tmp_path: Path
) -> None:
    fs.write("a", "1")
    gone = fs.snapshot()
    store = tmp_path / "store" / "objects" / "pack"
    for path in store.iterdir():
        path.unlink()
    fs.write("a", "2")
    kept = fs.snapshot()
    assert list(fs.history.list()) == [kept]
    [problem] = fs.history.verify()
    assert problem.snapshot_id == str(gone.snapshot_id)
    with pytest.raises(SnapshotError, match=str(gone.snapshot_id)):
        fs.history.gc()
    fs.history.forget(UUID(problem.snapshot_id))
    fs.history.gc()
    assert list(fs.history.verify()) == []


def test_a_commit_that_nobody_knows_of_does_not_stop_gc(fs: HostFilesystem) -> None:
    """Killed before it is pinned, and then damaged, it could not be forgotten."""
    fs.write("a", "1")
    kept = fs.snapshot()
    fs.write("a", "precious")
    assert is_killed_at("commit.moved", fs.snapshot)
    break_packs(fs, b"precious")
    fs.history.gc()
    assert list(fs.history.list()) == [kept]
    assert list(fs.history.verify()) == []
    assert fs.snapshot().commit_ref != kept.commit_ref


# --- what is needed ---


def test_what_a_savepoint_goes_back_to_stays(fs: HostFilesystem) -> None:
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    savepoint = fs.savepoint()
    fs.restore(kept)
    needed = [
        each for each in fs.history.list() if (each.tag or "").endswith(str(kept.snapshot_id))
    ]
    for each in (kept, needed[-1]):
        with pytest.raises(SnapshotError, match=f"Cannot delete snapshot .*{each.snapshot_id}"):
            fs.history.forget(each)
    assert fs.history.prune(keep=0) == []
    assert {kept, needed[-1]} <= set(fs.history.list())
    fs.history.gc()
    savepoint.rollback()
    assert fs.read("a").content == "new"
    fs.history.prune(keep=0)
    assert fs.history.list() == []


@pytest.mark.parametrize("ended", [False, True])
def test_what_the_savepoint_of_another_process_goes_back_to_stays(
    fs: HostFilesystem, ended: bool
) -> None:
    """Whether it still has it open, or is gone and it must be rolled back by the next."""
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    ready, go_on = os.pipe(), os.pipe()

    def work() -> None:
        os.close(go_on[1])
        other = again(fs)
        savepoint = other.savepoint()
        other.restore(kept)
        assert savepoint.is_open
        os.write(ready[1], b".")
        if not ended:
            os.read(go_on[0], 1)
        os._exit(KILLED)

    child = in_a_child(work)
    os.close(ready[1])
    os.read(ready[0], 1)
    code = ends(child) if ended else None
    assert fs.history.prune(keep=0) == []
    fs.history.gc()
    os.close(go_on[1])
    assert (ends(child) if code is None else code) == KILLED
    with again(fs) as next_one:
        assert next_one.read("a").content == "new"
    os.close(ready[0])
    os.close(go_on[0])


def test_an_interrupted_restore_is_finished_without_its_snapshot(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    assert is_killed_at("change.changing", lambda: fs.restore(kept))
    with HostFilesystem(root, git_dir=root.parent / "store", read_only=True) as reader:
        reader.history.forget(kept)
        reader.history.prune(keep=0)
        reader.history.gc()
    with again(fs) as next_one:
        assert next_one.read("a").content == "old"


# --- closed ---


def test_a_closed_filesystem_has_no_history_and_holds_no_lock(root: Path, tmp_path: Path) -> None:
    fs = HostFilesystem(root, git_dir=tmp_path / "store")
    fs.write("a", "1")
    kept: FilesystemSnapshot = fs.snapshot()
    history = fs.history
    fs.close()
    for asked in (
        history.list,
        lambda: history.prune(keep=0),
        history.gc,
        history.verify,
        history.size,
        fs.snapshot,
        lambda: fs.view(kept),
    ):
        with pytest.raises(SnapshotError, match="Filesystem is closed"):
            asked()
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        assert [each.commit_ref for each in other.history.list()] == [kept.commit_ref]
        other.cleanup()
    assert not (tmp_path / "store").exists()


def test_a_closed_filesystem_cleans_up(root: Path, tmp_path: Path) -> None:
    fs = HostFilesystem(root, git_dir=tmp_path / "store")
    fs.snapshot()
    fs.close()
    fs.cleanup()
    fs.cleanup()
    assert not (tmp_path / "store").exists()


# --- what cannot be used ---


def test_a_store_that_cannot_be_used_is_told_as_such(fs: HostFilesystem, tmp_path: Path) -> None:
    fs.snapshot()
    (tmp_path / "store" / "wink.lock").unlink()
    (tmp_path / "store" / "wink.lock").mkdir()
    for asked in (fs.history.gc, fs.history.verify, lambda: fs.history.prune(keep=0)):
        with pytest.raises(SnapshotError, match=r"store cannot be used.*wink.lock"):
            asked()
    with pytest.raises(SnapshotError, match=r"Failed to remove snapshots.*wink.lock"):
        fs.cleanup()


def test_a_workspace_that_was_removed_is_not_taken_for_an_empty_one(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("a", "1")
    kept = fs.snapshot()
    fs.delete("a")
    root.rmdir()
    with pytest.raises(SnapshotError, match="Failed to create snapshot: Directory was removed"):
        fs.snapshot()
    with pytest.raises(SnapshotError, match=r"Failed to restore.*Directory was removed"):
        fs.restore(kept)
    root.mkdir()
    with again(fs) as next_one:
        next_one.restore(kept)
        assert next_one.read("a").content == "1"


def test_a_snapshot_of_a_workspace_in_memory_is_unknown(fs: HostFilesystem) -> None:
    kept = InMemoryFilesystem().snapshot()
    for force in (False, True):
        with pytest.raises(SnapshotError, match="Unknown snapshot"):
            fs.restore(kept, force=force)


def test_what_another_instance_has_forgotten_is_unknown_and_not_damaged(fs: HostFilesystem) -> None:
    fs.write("a", "1")
    kept = fs.snapshot()
    fs.write("a", "2")
    with again(fs) as other:
        other.snapshot()
        other.history.prune(keep=0)
        other.history.gc()
    with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
        fs.restore(kept)
    assert fs.read("a").content == "2"


@pytest.mark.parametrize("wrong", [None, "mem-1", 1, {}])
@pytest.mark.parametrize("method", ["restore", "preview", "view"])
@pytest.mark.parametrize("memory", [False, True])
def test_what_is_no_snapshot_is_refused_in_a_sentence(
    fs: HostFilesystem, memory: bool, method: str, wrong: object
) -> None:
    filesystem = InMemoryFilesystem() if memory else fs
    with pytest.raises(SnapshotRestoreError, match=r"Not a snapshot; pass what snapshot\(\)"):
        getattr(filesystem, method)(wrong)
