"""The list of snapshots, restores of some paths, imports, and what an exclusive instance knows."""

import errno
import os
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import clear
from tests.posix.forks import is_killed_at
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import (
    ArchiveFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    StateReplaced,
)
from weakincentives.filesystem.host.snapshots import capture
from weakincentives.filesystem.host.snapshots.commits import WorkspaceCommits
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.posix import fault_hook


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def fs(root: Path, tmp_path: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        yield fs


@pytest.fixture
def mine(root: Path, tmp_path: Path) -> Iterator[HostFilesystem]:
    """An instance that nobody else changes files of."""
    with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=True) as fs:
        yield fs


# --- the list ---


def test_there_is_no_history_before_the_first_snapshot(fs: HostFilesystem, tmp_path: Path) -> None:
    assert list(fs.history.list()) == []
    assert fs.history.size().snapshots == 0
    assert list(fs.history.verify()) == []
    fs.history.gc()
    assert not (tmp_path / "store").exists()


def test_snapshots_are_listed_as_they_were_returned(fs: HostFilesystem) -> None:
    taken = []
    for tag in ("one", None, "three"):
        fs.write("a", str(tag))
        taken.append(fs.snapshot(tag=tag))
    assert list(fs.history.list()) == taken


def test_another_instance_sees_the_list_and_restores_from_it(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.write("a", "first")
    fs.snapshot(tag="first")
    fs.write("a", "second")
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        (first,) = other.history.list()
        other.restore(first)
    assert fs.read("a").content == "first"


def test_a_restore_leaves_the_state_before_in_the_list(fs: HostFilesystem) -> None:
    fs.write("a", "first")
    first = fs.snapshot()
    fs.write("a", "second")
    fs.restore(first)
    before = fs.history.list()[-1]
    assert before.tag == f"before restore of {first.snapshot_id}"
    fs.restore(before)
    assert fs.read("a").content == "second"


def test_a_snapshot_of_nothing_new_is_another_name_of_the_same_commit(
    mine: HostFilesystem, tmp_path: Path
) -> None:
    mine.write("a", "one")
    first = mine.snapshot()
    files = {path for path in (tmp_path / "store").rglob("*") if path.parent.name != "wink"}
    again = mine.snapshot()
    assert {path for path in (tmp_path / "store").rglob("*") if path.parent.name != "wink"} == files
    assert again.commit_ref == first.commit_ref
    assert again.created_at > first.created_at
    assert list(mine.history.list()) == [first, again]
    mine.write("a", "two")
    mine.history.forget(first)
    mine.history.gc()
    mine.restore(again)
    assert mine.read("a").content == "one"


def test_a_snapshot_with_a_tag_has_a_commit_of_its_own(mine: HostFilesystem) -> None:
    taken = [mine.snapshot(tag=tag) for tag in ("same", "same", None)]
    assert len({each.commit_ref for each in taken}) == 2
    assert [each.tag for each in mine.history.list()] == ["same", "same", None]


def test_after_a_snapshot_of_another_instance_it_is_a_commit_again(
    mine: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    first = mine.snapshot()
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        second = other.snapshot(tag="other")
    third = mine.snapshot()
    assert third.commit_ref != first.commit_ref
    assert list(mine.history.list()) == [first, second, third]


def test_what_the_store_has_lost_is_stored_again_though_nothing_changed(
    mine: HostFilesystem, tmp_path: Path
) -> None:
    mine.write("a", "one")
    mine.snapshot()
    packs = set((tmp_path / "store/objects/pack").iterdir())
    mine.write("b", "two")
    mine.snapshot()
    for path in packs:
        path.unlink()
    kept = mine.snapshot()
    mine.delete("a")
    mine.restore(kept)
    assert mine.read("a").content == "one"


def test_pruning_keeps_the_latest(fs: HostFilesystem) -> None:
    taken = [fs.snapshot(tag=str(number)) for number in range(5)]
    assert list(fs.history.prune(keep=2)) == taken[:3]
    assert list(fs.history.list()) == taken[3:]
    with pytest.raises(SnapshotRestoreError):
        fs.history.gc()
        fs.restore(taken[0])
    fs.restore(taken[4])


def test_pruning_by_date_spares_the_latest(fs: HostFilesystem) -> None:
    taken = [fs.snapshot() for _ in range(3)]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert list(fs.history.prune(before=later, keep=1)) == taken[:2]
    assert list(fs.history.prune(before=taken[2].created_at)) == []
    assert list(fs.history.prune(before=later)) == taken[2:]


def test_pruning_without_a_rule_forgets_nothing(fs: HostFilesystem) -> None:
    fs.snapshot()
    with pytest.raises(ValueError, match="needs keep= or before="):
        fs.history.prune()
    with pytest.raises(ValueError, match="negative"):
        fs.history.prune(keep=-1)
    with pytest.raises(ValueError, match="time zone"):
        fs.history.prune(before=datetime(2024, 1, 1))  # noqa: DTZ001 # the point of the test
    assert len(fs.history.list()) == 1


def test_space_is_freed_after_pruning(fs: HostFilesystem) -> None:
    fs.write_bytes("large", random.Random(0).randbytes(40_000))
    fs.snapshot()
    fs.delete("large")
    fs.snapshot()
    before = fs.history.size()
    fs.history.prune(keep=1)
    fs.history.gc()
    after = fs.history.size()
    assert (before.snapshots, after.snapshots) == (2, 1)
    assert after.bytes < before.bytes


def test_damage_is_found_and_named(fs: HostFilesystem, tmp_path: Path) -> None:
    fs.write("a", "content")
    kept = fs.snapshot()
    assert list(fs.history.verify()) == []
    for path in (tmp_path / "store" / "objects").rglob("*"):
        if path.is_file() and path.suffix != ".idx":
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:12] + bytes(path.stat().st_size - 12))
    problems = fs.history.verify()
    assert any(str(kept.snapshot_id) == each.snapshot_id for each in problems)


# --- some paths ---


def test_only_the_named_paths_come_back(fs: HostFilesystem) -> None:
    for path in ("a/x", "a/y", "b/z"):
        fs.write(path, "old")
    kept = fs.snapshot()
    for path in ("a/x", "a/y", "b/z", "a/new"):
        fs.write(path, "new")
    fs.restore(kept, paths=["a/x", "/b"])
    contents = [fs.read(path).content for path in ("a/x", "a/y", "b/z", "a/new")]
    assert contents == ["old", "new", "old", "new"]


def test_a_partial_restore_can_be_undone(fs: HostFilesystem) -> None:
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    fs.restore(kept, paths=["a"])
    fs.restore(list(fs.history.list())[-1])
    assert fs.read("a").content == "new"


def test_permissions_of_the_named_paths_come_back(fs: HostFilesystem, root: Path) -> None:
    for name in ("a", "b"):
        fs.write(f"{name}/f", "")
        (root / name / "f").chmod(0o600)
        (root / name).chmod(0o700)
    kept = fs.snapshot()
    for name in ("a", "b"):
        (root / name / "f").chmod(0o640)
        (root / name).chmod(0o750)
    fs.restore(kept, paths=["a"])
    modes = [(root / path).stat().st_mode & 0o777 for path in ("a", "a/f", "b", "b/f")]
    assert modes == [0o700, 0o600, 0o750, 0o640]


def test_a_partial_restore_that_is_cut_off_is_finished(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    for path in ("a", "b", "c"):
        fs.write(path, "old")
    kept = fs.snapshot()
    for path in ("a", "b", "c"):
        fs.write(path, "new")
    assert is_killed_at("change.exchanged", lambda: fs.restore(kept, paths=["a", "b"]))
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        assert [other.read(path).content for path in ("a", "b", "c")] == ["old", "old", "new"]


# --- what an ordinary user may not read or write, but owns ---

NOBODY = 65534


def as_ordinary_user(work: Callable[[Path], bool]) -> bool:
    """Run `work` in a directory of a user without privileges; return what it returns."""
    place = Path(tempfile.mkdtemp(dir=tempfile.gettempdir()))
    try:
        place.chmod(0o777)
        child = os.fork()
        if not child:
            code = 1
            try:
                if not os.geteuid():
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                code = 0 if work(place) else 1
            except BaseException:  # noqa: BLE001 # the parent is told by the exit code
                traceback.print_exc()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        clear(place)
        place.rmdir()


def modes_below(root: Path) -> dict[str, int]:
    return {str(each.relative_to(root)): each.lstat().st_mode & 0o7777 for each in root.rglob("*")}


def close_and_restore(place: Path, mode: int) -> bool:
    root = place / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("old")
    (root / "a" / "b").chmod(0o500)
    (root / "a").chmod(0o555)
    with HostFilesystem(root, git_dir=place / "store") as fs:
        kept, modes = fs.snapshot(), modes_below(root)
        (root / "a").chmod(0o755)
        (root / "a" / "b").chmod(0o755)
        (root / "a" / "b" / "file").write_text("new")
        (root / "a" / "b" / "more").write_text("new")
        (root / "a" / "b" / "file").chmod(0)
        (root / "a" / "b").chmod(mode)
        (root / "a").chmod(mode)
        closed = fs.snapshot()
        stays_closed = (root / "a").stat().st_mode & 0o7777 == mode
        fs.restore(kept)
        back = fs.read("a/b/file").content == "old" and modes_below(root) == modes
        fs.restore(closed)
        return stays_closed and back and fs.view(closed).read("a/b/file").content == "new"


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
@pytest.mark.parametrize("mode", [0, 0o600, 0o300, 0o100])
def test_what_is_closed_but_ours_is_kept_and_restored(fs: HostFilesystem, mode: int) -> None:
    fs.snapshot()  # whatever is imported late is imported now
    assert as_ordinary_user(lambda place: close_and_restore(place, mode))


def test_a_snapshot_without_end_is_refused(
    fs: HostFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weakincentives.filesystem.host.snapshots.edits._MAX_REPEATED", 10)
    for number in range(12):
        fs.write(f"d{number}/same", "")
    kept = fs.snapshot()
    for number in range(12):
        fs.delete(f"d{number}", recursive=True)
    with pytest.raises(SnapshotRestoreError, match="repeats more than 10 entries"):
        fs.restore(kept)
    assert list(fs.list()) == []


def test_bits_beyond_the_permissions_come_back(fs: HostFilesystem, root: Path) -> None:
    fs.write("program", "")
    (root / "program").chmod(0o4755)
    kept = fs.snapshot()
    (root / "program").chmod(0o755)
    fs.restore(kept)
    assert (root / "program").stat().st_mode & 0o7777 == 0o4755
    (root / "program").chmod(0o755)
    plain = fs.snapshot()
    (root / "program").chmod(0o6755)
    fs.restore(plain)
    assert (root / "program").stat().st_mode & 0o7777 == 0o755


# --- imports ---


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    source = InMemoryFilesystem()
    for path in ("a", "b/c", "d/e/f"):
        source.write(path, "imported")
    source.mkdir("empty")
    source.export_archive(tmp_path / "state.zip")
    return tmp_path / "state.zip"


def test_an_import_can_be_undone(fs: HostFilesystem, archive: Path) -> None:
    fs.write("a", "mine")
    fs.import_archive(archive)
    assert fs.read("a").content == "imported"
    before = next(each for each in fs.history.list() if each.tag == "before import of state.zip")
    fs.restore(before)
    assert [each.path for each in fs.glob("**")] == ["a"]
    assert fs.read("a").content == "mine"


@pytest.mark.parametrize("point", ["change.changing", "change.removed", "change.created"])
def test_an_import_that_is_cut_off_is_finished_by_the_next_to_come(
    fs: HostFilesystem, root: Path, tmp_path: Path, archive: Path, point: str
) -> None:
    fs.write("a", "mine")
    fs.write("old/file", "mine")
    assert is_killed_at(point, lambda: fs.import_archive(archive))
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        assert [each.path for each in other.glob("**")] == ["a", "b/c", "d/e/f"]
        assert other.stat("empty").is_directory


def failing(point: str, times: int, always: str = ""):
    """Return a hook that fails as a broken disk does: `times` times at `point`, and `always`."""
    left = iter(range(times))

    def hook(name: str) -> None:
        if name == always or (name == point and next(left, None) is not None):
            raise OSError(5, "Input/output error")

    return hook


def test_what_failed_half_way_is_taken_back(fs: HostFilesystem, archive: Path) -> None:
    fs.write("old/file", "mine")
    with pytest.raises(OSError, match="Input/output"), fault_hook(failing("change.created", 1)):
        fs.import_archive(archive)
    assert [each.path for each in fs.glob("**")] == ["old/file"]
    fs.import_archive(archive)
    assert [each.path for each in fs.glob("**")] == ["a", "b/c", "d/e/f"]


def test_what_cannot_be_taken_back_is_by_the_next_snapshot(
    fs: HostFilesystem, archive: Path
) -> None:
    fs.write("old/file", "mine")
    broken = fault_hook(failing("change.created", 1, "rollback.undone"))
    with pytest.raises(SnapshotRestoreError, match="next snapshot or restore"), broken:
        fs.import_archive(archive)
    with pytest.raises(SnapshotRestoreError, match="take a snapshot"):
        fs.write("precious", "would be taken away")
    kept = fs.snapshot()
    assert [each.path for each in fs.view(kept).glob("**")] == ["old/file"]
    assert [each.path for each in fs.glob("**")] == ["old/file"]
    fs.write("precious", "stays")


def test_pipes_in_a_directory_that_goes_are_no_obstacle(fs: HostFilesystem, root: Path) -> None:
    kept = fs.snapshot()
    fs.mkdir("new/deep")
    os.mkfifo(root / "new" / "deep" / "pipe")
    fs.restore(kept)
    assert list(fs.list()) == []


def test_an_import_beyond_the_quota_changes_nothing(
    root: Path, tmp_path: Path, archive: Path
) -> None:
    limits = Limits(max_files=3)
    with HostFilesystem(root, git_dir=tmp_path / "store", limits=limits) as fs:
        fs.write("mine", "")
        with pytest.raises(LimitExceededError, match="quota"):
            fs.import_archive(archive)
        assert [each.path for each in fs.glob("**")] == ["mine"]


def test_an_import_is_told(fs: HostFilesystem, archive: Path) -> None:
    told: list[object] = []
    fs.subscribe(told.append)
    fs.import_archive(archive)
    assert told == [StateReplaced("import", str(archive))]


# --- another store ---


def test_a_snapshot_in_another_store_of_the_same_workspace_is_restored(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.write("a/b", "first")
    kept = fs.snapshot()
    with HostFilesystem(root, git_dir=tmp_path / "elsewhere") as other:
        other.write("a/b", "second")
        other.write("c", "second")
        other.restore(kept, paths=["a"])
        assert (other.read("a/b").content, other.read("c").content) == ("first", "second")
        other.restore(kept)
        assert not other.exists("c")


# --- exclusive ---


def test_an_exclusive_instance_sees_its_own_changes(mine: HostFilesystem, root: Path) -> None:
    mine.write("a/b", "1")
    mine.write("c", "1")
    first = mine.snapshot()
    mine.write("a/new", "2")
    mine.move("c", "d/e")
    mine.copy("a", "f")
    second = mine.snapshot()
    mine.delete("a", recursive=True)
    mine.restore(second)
    assert [each.path for each in mine.glob("**")] == ["a/b", "a/new", "d/e", "f/b", "f/new"]
    mine.restore(first)
    assert [each.path for each in mine.glob("**")] == ["a/b", "c"]
    with HostFilesystem(root, git_dir=mine.git_dir) as other:
        assert not other.preview(first)


def test_an_exclusive_instance_looks_at_nothing_else(mine: HostFilesystem, root: Path) -> None:
    mine.write("a", "1")
    mine.write("b", "1")
    mine.snapshot()
    (root / "a").write_text("changed behind its back")
    mine.write("b", "2")
    kept = mine.snapshot()
    assert mine.view(kept).read("a").content == "1"
    mine.invalidate()
    kept = mine.snapshot()
    assert mine.view(kept).read("a").content == "changed behind its back"


def test_what_failed_is_looked_at_again(mine: HostFilesystem) -> None:
    mine.write("a", "1")
    mine.snapshot()
    mine.write("a", "2")
    assert is_killed_at("commit.stored", mine.snapshot)
    kept = mine.snapshot()
    assert mine.view(kept).read("a").content == "2"


# --- stores that change behind our back ---


def test_what_was_lost_from_the_store_is_stored_again(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.write("a", "1")
    fs.write("b", "1")
    fs.snapshot()
    for path in (tmp_path / "store" / "objects" / "pack").iterdir():
        path.unlink()
    fs.write("a", "2")
    kept = fs.snapshot()
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        other.write("b", "3")
        other.restore(kept)
        assert (other.read("a").content, other.read("b").content) == ("2", "1")


def test_an_interrupted_restore_does_not_befall_another_directory(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    assert is_killed_at("change.changing", lambda: fs.restore(kept))
    fs.close()
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    (root / "b").write_text("another project")
    with HostFilesystem(root, git_dir=tmp_path / "store") as other:
        assert [each.path for each in other.glob("**")] == ["b"]


@pytest.mark.parametrize("place", ["inside", "inside/deeper", "."])
def test_a_store_in_the_workspace_is_refused(root: Path, place: str) -> None:
    with (
        HostFilesystem(root, git_dir=root / place) as fs,
        pytest.raises(SnapshotError, match="must not be in the workspace"),
    ):
        fs.snapshot()
    assert list(root.iterdir()) == []


def test_a_workspace_in_the_store_is_refused(root: Path) -> None:
    with (
        HostFilesystem(root, git_dir=root.parent) as fs,
        pytest.raises(SnapshotError, match="must not be in the workspace"),
    ):
        fs.snapshot()


def test_one_path_where_several_are_expected_is_a_mistake(fs: HostFilesystem) -> None:
    kept = fs.snapshot()
    with pytest.raises(TypeError, match="not one: 'src'"):
        fs.restore(kept, paths="src")
    with pytest.raises(TypeError, match="not one: 'src'"):
        fs.preview(kept, paths="src")


def test_a_store_that_names_a_tree_over_and_over_is_refused(
    fs: HostFilesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weakincentives.filesystem.host.snapshots.store._MAX_ENTRIES", 100)
    (tmp_path / "bomb").mkdir()
    with HostFilesystem(tmp_path / "bomb", git_dir=tmp_path / "theirs") as theirs:
        for number in range(101):
            theirs.write(f"d{number}/f", "")
        kept = theirs.snapshot()
    with pytest.raises(SnapshotRestoreError, match="more than 100 entries"):
        fs.restore(kept, force=True)


# --- the next process ---


def read_by(fs: HostFilesystem, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every file that a capture reads."""
    read: list[int] = []
    original = capture.read_range

    def counted(descriptor: int, offset: int, size: int) -> bytes:
        read.append(size)
        return original(descriptor, offset, size)

    monkeypatch.setattr(capture, "read_range", counted)
    return read


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe at once that a file which looks the same is the same."""
    monkeypatch.setattr("weakincentives.filesystem.host.files._RACY_NS", -1)
    monkeypatch.setattr("weakincentives.filesystem.host.files._COARSE_NS", -1)


@pytest.mark.usefixtures("trusting")
def test_the_next_process_reads_only_what_has_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (root / f"f{number}").write_text(str(number))
    with HostFilesystem(root, git_dir=tmp_path / "store") as first:
        first.snapshot()
    with HostFilesystem(root, git_dir=tmp_path / "store") as second:
        read = read_by(second, monkeypatch)
        (root / "f3").write_text("changed")
        kept = second.snapshot()
        assert len(read) == 1
        assert second.view(kept).read("f3").content == "changed"
        assert second.view(kept).read("f4").content == "4"


@pytest.mark.usefixtures("trusting")
def test_an_index_of_a_store_that_has_lost_something_is_not_believed(
    root: Path, tmp_path: Path
) -> None:
    (root / "a").write_text("1")
    with HostFilesystem(root, git_dir=tmp_path / "store") as first:
        first.snapshot()
    for path in (tmp_path / "store" / "objects" / "pack").iterdir():
        path.unlink()
    with HostFilesystem(root, git_dir=tmp_path / "store") as second:
        kept = second.snapshot()
        second.write("a", "2")
        second.restore(kept)
        assert second.read("a").content == "1"


# --- whose snapshot it is ---


def test_a_relative_root_means_the_directory_that_it_meant_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "project").mkdir(parents=True)
        (tmp_path / name / "project" / "file").write_text(name)
    monkeypatch.chdir(tmp_path / "a")
    with HostFilesystem("project", git_dir=tmp_path / "store-a") as first:
        kept = first.snapshot()
        monkeypatch.chdir(tmp_path / "b")
        first.write("file", "changed")
        first.restore(kept)
        assert first.read("file").content == "a"
    with (
        HostFilesystem("project", git_dir=tmp_path / "store-b") as second,
        pytest.raises(SnapshotRestoreError, match="another workspace"),
    ):
        second.restore(kept)
    assert (tmp_path / "b" / "project" / "file").read_text() == "b"


def test_a_copy_from_another_store_loses_nothing(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    for name, mode in (("sticky", 0o1777), ("shared", 0o2775)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    fs.write("program", "")
    (root / "program").chmod(0o4755)
    os.mkfifo(root / "pipe")
    before, kept = modes_below(root), fs.snapshot()
    with HostFilesystem(root, git_dir=tmp_path / "other") as other:
        other.write("new", "")
        other.restore(kept)
        assert modes_below(root) == before


@pytest.mark.parametrize("how", ["", "savepoint", "view"])
def test_a_store_of_another_root_gives_no_rights(
    fs: HostFilesystem, root: Path, tmp_path: Path, how: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name, mode in (("sticky", 0o1777), ("shared", 0o2775)):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name).chmod(mode)
    for name, mode in (("program", 0o6755), ("odd", 0o1600)):
        (elsewhere / name).write_text("")
        (elsewhere / name).chmod(mode)
    with HostFilesystem(elsewhere, git_dir=tmp_path / "other") as other:
        kept = other.snapshot()
        if how == "view":
            view = other.view(kept)
            assert isinstance(view, SnapshotFilesystem)
            fs.restore(view, force=True)
        elif how == "savepoint":
            with fs.savepoint() as savepoint:
                fs.restore(kept, force=True)
                savepoint.release()
        else:
            fs.restore(kept, force=True)
    expected = {"sticky": 0o1777, "shared": 0o775, "program": 0o755, "odd": 0o600}
    assert modes_below(root) == expected
    for each in fs.history.list():
        fs.restore(each)
        assert modes_below(root) in ({}, expected)  # the copy has no rights either


def test_a_view_gives_no_rights_though_everything_else_is_the_same(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("program", "")
    (root / "program").chmod(0o4755)
    view = fs.view(fs.snapshot())
    fs.write("new", "")
    fs.restore(view)
    assert modes_below(root) == {"program": 0o755}


def test_why_a_save_cannot_be_stored_is_logged(
    fs: HostFilesystem,
    root: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs.write("a", "1")
    kept = fs.snapshot()
    fs.write("a", "2")

    def save(point: str) -> None:
        if point == "change.changing":
            (root / "a").write_text("mine")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WorkspaceCommits, "store_entries", fail)
    with fault_hook(save):
        fs.restore(kept)
    assert "Cannot store what somebody saved during a restore" in caplog.text
    assert "a: [Errno 28] No space left on device" in caplog.text
    assert (root / "a.wink-kept").read_text() == "mine"


def test_a_restore_in_a_savepoint_stores_only_the_state_before(fs: HostFilesystem) -> None:
    fs.write("a", "1")
    first = fs.snapshot()
    fs.write("a", "2")
    second = fs.snapshot()
    with fs.savepoint() as savepoint:
        fs.restore(first, expect=second)
        fs.restore(second)
        savepoint.release()
    tags = [str(each.tag).partition(" of ")[0] for each in fs.history.list()[2:]]
    assert tags == ["before restore", "before restore"]


def test_another_spelling_of_the_store_is_the_same_store(fs: HostFilesystem) -> None:
    fs.write("a", "1")
    kept = fs.snapshot()
    fs.write("a", "2")
    fs.restore(replace(kept, git_dir=f"{kept.git_dir}/"))
    assert fs.read("a").content == "1"
    assert not any(str(each.tag).startswith("copy") for each in fs.history.list())


def test_a_read_only_instance_finishes_nothing(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.write("a", "old")
    kept = fs.snapshot()
    fs.write("a", "new")
    assert is_killed_at("change.changing", lambda: fs.restore(kept))
    with (
        HostFilesystem(root, git_dir=tmp_path / "store", read_only=True) as reader,
        pytest.raises(SnapshotError, match="open for writing"),
    ):
        reader.snapshot()
    assert (root / "a").read_text() == "new"


def test_some_paths_are_bound_by_the_quota_too(root: Path, tmp_path: Path) -> None:
    limits = Limits(max_total_bytes=100)
    with HostFilesystem(root, git_dir=tmp_path / "store", limits=limits) as fs:
        fs.write("a", "x" * 90)
        kept = fs.snapshot()
        fs.delete("a")
        fs.write("b", "x" * 90)
        with pytest.raises(LimitExceededError):
            fs.restore(kept, paths=["a"])
        assert [each.path for each in fs.glob("**")] == ["b"]


def test_a_preview_says_what_becomes_of_pipes(fs: HostFilesystem, root: Path) -> None:
    os.mkfifo(root / "stays")
    kept = fs.snapshot()
    assert not fs.preview(kept)
    os.mkfifo(root / "new")
    assert [str(each) for each in fs.preview(kept).entries] == ["removed new"]
    fs.restore(kept, paths=["new"])
    assert [each.name for each in root.iterdir()] == ["stays"]
    (root / "stays").unlink()
    assert not fs.preview(kept)


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
def test_the_root_is_closed_again(fs: HostFilesystem) -> None:
    assert as_ordinary_user(restore_in_a_closed_root)


def restore_in_a_closed_root(place: Path) -> bool:
    root = place / "root"
    root.mkdir()
    with HostFilesystem(root, git_dir=place / "store") as fs:
        kept = fs.snapshot()
        fs.write("a", "")
        root.chmod(0o555)
        fs.restore(kept)
        return root.stat().st_mode & 0o7777 == 0o555 and not list(root.iterdir())


def test_cleaning_up_needs_no_snapshot_of_ones_own(
    fs: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    fs.snapshot()
    fs.close()
    HostFilesystem(root, git_dir=tmp_path / "store").cleanup()
    assert not (tmp_path / "store").exists()


def test_a_view_and_an_archive_are_filesystems_that_refuse_to_be_written(
    fs: HostFilesystem, tmp_path: Path
) -> None:
    fs.write("a", "1")
    fs.export_archive(tmp_path / "a.zip")
    with ArchiveFilesystem(tmp_path / "a.zip") as archive:
        for state in (fs.view(fs.snapshot()), archive):
            assert isinstance(state, Filesystem)
            assert state.read_only
            for act in (
                lambda state=state: state.write("b", "2"),
                lambda state=state: state.write_bytes("b", b"2"),
                lambda state=state: state.delete("a"),
                lambda state=state: state.mkdir("c"),
            ):
                with pytest.raises(ReadOnlyError):
                    act()
