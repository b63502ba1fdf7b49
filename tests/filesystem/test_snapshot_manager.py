"""Named snapshots."""

import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Thread

import pytest

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem import snapshot_manager as manager
from weakincentives.filesystem import snapshot_manager as shelf
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem
from weakincentives.filesystem.archive.format import ArchiveError
from weakincentives.filesystem.events import FilesystemEvent
from weakincentives.filesystem.paths import InvalidPathError
from weakincentives.filesystem.snapshot_manager import SnapshotInfo, SnapshotManager
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.posix import fault_hook, temporary_name

POINTS = (manager.EXPORTED, *shelf.FAULT_POINTS)
_LEAVE_A_MESS = """
import os, sys
from pathlib import Path
from weakincentives.posix import temporary_name

hidden = Path(sys.argv[1]) / temporary_name()
hidden.mkdir(0o700)
(hidden / "half.fs.zip").write_bytes(b"PK")
os._exit(9)
"""
_RESTORE_ELSEWHERE = """
import sys
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.filesystem.snapshot_manager import SnapshotManager

fs = InMemoryFilesystem()
assert SnapshotManager(fs).restore(sys.argv[1]) == 1
print(fs.read("a.txt").content)
"""


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[BaseFilesystem, None, None]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    (tmp_path / "workspace").mkdir()
    with HostFilesystem(tmp_path / "workspace", git_dir=tmp_path / "store") as host:
        yield host


@pytest.fixture
def memory() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write("a.txt", "one")
    return fs


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "wink-fs-snapshots"


def test_a_rollback_goes_back_and_forth(fs: BaseFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(fs, tmp_path / "snaps")
    fs.write("file.txt", "v1")
    snapshots.snapshot("s1")
    fs.write("file.txt", "v2")
    fs.write("more/file.txt", "new")
    snapshots.snapshot("s2")
    fs.write("file.txt", "v3")
    assert snapshots.rollback("s1") == 1
    assert fs.read("file.txt").content == "v1"
    assert not fs.exists("more")
    assert snapshots.rollback("s2") == 2
    assert fs.read("more/file.txt").content == "new"


def test_a_snapshot_is_described(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    date = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
    snapshots = SnapshotManager(memory, tmp_path, clock=lambda: date)
    info = snapshots.snapshot("turn-5")
    path = tmp_path / "turn-5.fs.zip"
    assert info == SnapshotInfo("turn-5", path, 1, path.stat().st_size, date)
    assert snapshots.get("turn-5") == info
    assert snapshots.filesystem is memory
    with ArchiveFilesystem(path) as state:
        assert state.manifest.created_at == date


def test_an_unknown_id_is_a_key_error(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    with pytest.raises(KeyError, match="Snapshot not found: before"):
        snapshots.rollback("before")
    assert snapshots.get("before") is None
    assert not snapshots.delete("../before")


def test_snapshots_are_listed_as_they_were_taken_whatever_the_clock_says(
    memory: InMemoryFilesystem, tmp_path: Path
) -> None:
    now = datetime(2024, 1, 15, tzinfo=UTC)
    days = iter([now, now - timedelta(days=1), now + timedelta(days=1), now])
    snapshots = SnapshotManager(memory, tmp_path, clock=lambda: next(days))
    for snapshot_id in ("c", "a", "b", "a"):
        snapshots.snapshot(snapshot_id)
    assert [info.snapshot_id for info in snapshots.list_snapshots()] == ["c", "b", "a"]


def test_a_known_id_is_replaced(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    snapshots.snapshot("same")
    memory.write("a.txt", "two")
    snapshots.snapshot("same")
    memory.write("a.txt", "three")
    snapshots.rollback("same")
    assert memory.read("a.txt").content == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["same.fs.zip"]


def test_delete_removes_the_archive(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    snapshots.snapshot("gone")
    assert snapshots.delete("gone")
    assert not snapshots.delete("gone")
    assert snapshots.list_snapshots() == ()
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_survives_its_manager(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    path = SnapshotManager(memory, tmp_path).snapshot("kept").archive_path
    command = [sys.executable, "-c", _RESTORE_ELSEWHERE, str(path)]
    assert subprocess.check_output(command, text=True) == "one\n"


@pytest.mark.parametrize(
    "snapshot_id",
    ["turn-5", "v1.2", "_x", "before refactor", "2 (copy)", "Überblick", "नमस्ते", "x" * 200],
)
def test_plain_names_are_ids(memory: InMemoryFilesystem, tmp_path: Path, snapshot_id: str) -> None:
    info = SnapshotManager(memory, tmp_path).snapshot(snapshot_id)
    assert info.archive_path == tmp_path / f"{snapshot_id}.fs.zip"
    assert info.archive_path.is_file()


@pytest.mark.parametrize(
    "snapshot_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/x",
        "a\\b",
        "a\0b",
        "a\nb",
        ".hidden",
        "-rf",
        "~root",
        " a",
        "a ",
        "a.",
        "a:b",
        "a*",
        "a?",
        "a|b",
        "x" * 201,
        "é" * 101,
        "CON",
        "nul",
        "Com1.txt",
        "lpt¹",
        "e\u0301",
        "x\u200by",
        "\u202egnp",
        "\u0301a",
        "\ud800",
    ],
)
def test_what_is_no_plain_name_is_refused(
    memory: InMemoryFilesystem, tmp_path: Path, snapshot_id: str
) -> None:
    snapshots = SnapshotManager(memory, tmp_path / "snaps")
    with pytest.raises(InvalidPathError, match="Snapshot id "):
        snapshots.snapshot(snapshot_id)
    assert list(tmp_path.iterdir()) == []


def test_case_twins_are_two_snapshots(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    snapshots.snapshot("A")
    memory.write("a.txt", "two")
    snapshots.snapshot("a")
    snapshots.rollback("A")
    assert memory.read("a.txt").content == "one"


def test_an_id_is_used_again_after_a_restart(fs: BaseFilesystem, tmp_path: Path) -> None:
    fs.write("a.txt", "one")
    first = SnapshotManager(fs, tmp_path / "snaps")
    path = first.snapshot("same").archive_path
    fs.write("a.txt", "two")
    second = SnapshotManager(fs, tmp_path / "snaps")
    assert second.snapshot("same").archive_path == path
    fs.write("a.txt", "three")
    with pytest.raises(ArchiveError, match="has changed since the snapshot"):
        first.rollback("same")
    assert fs.read("a.txt").content == "three"
    second.rollback("same")
    assert fs.read("a.txt").content == "two"
    assert [each.name for each in path.parent.iterdir()] == ["same.fs.zip"]


def test_an_empty_workspace_is_kept_again_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        assert SnapshotManager(InMemoryFilesystem(), tmp_path).snapshot("same").file_count == 0


@pytest.mark.parametrize("kind", ["text", "nothing", "directory", "link", "pipe"])
def test_what_is_no_archive_is_not_replaced(
    memory: InMemoryFilesystem, tmp_path: Path, kind: str
) -> None:
    path, other = tmp_path / "same.fs.zip", tmp_path / "other.zip"
    SnapshotManager(memory, tmp_path).snapshot("other").archive_path.rename(other)
    {
        "text": lambda: path.write_text("mine"),
        "nothing": path.touch,
        "directory": path.mkdir,
        "link": lambda: path.symlink_to(other),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    before = path.lstat()
    manager = SnapshotManager(memory, tmp_path)
    with pytest.raises(FileExistsError, match=r"not an archive.*same\.fs\.zip"):
        manager.snapshot("same")
    assert os.path.samestat(path.lstat(), before)
    assert path.lstat().st_size == before.st_size
    assert manager.list_snapshots() == ()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other.zip", "same.fs.zip"]


def test_managers_share_the_default_directory(memory: InMemoryFilesystem, temporary: Path) -> None:
    first, second = SnapshotManager(memory), SnapshotManager(memory)
    assert first.snapshot("same").archive_path == temporary / "same.fs.zip"
    memory.write("a.txt", "two")
    other = second.snapshot("same").archive_path
    assert other.name == "same.fs.zip"
    assert other.parent.parent == temporary
    first.rollback("same")
    assert memory.read("a.txt").content == "one"
    second.rollback("same")
    assert memory.read("a.txt").content == "two"
    second.delete("same")
    assert [path.name for path in temporary.iterdir()] == ["same.fs.zip"]


def test_archives_are_private(memory: InMemoryFilesystem, temporary: Path) -> None:
    old = os.umask(0)
    try:
        path = SnapshotManager(memory).snapshot("private").archive_path
        twin = SnapshotManager(memory).snapshot("private").archive_path
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(twin.stat().st_mode) == 0o600
    assert stat.S_IMODE(twin.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700


def test_an_open_default_directory_is_refused(memory: InMemoryFilesystem, temporary: Path) -> None:
    temporary.mkdir()
    temporary.chmod(0o755)
    with pytest.raises(SnapshotError, match="pass snapshot_dir"):
        SnapshotManager(memory).snapshot("a")
    assert list(temporary.iterdir()) == []


def test_a_link_as_default_directory_is_refused(
    memory: InMemoryFilesystem, temporary: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SnapshotError, match="pass snapshot_dir"):
        SnapshotManager(memory).snapshot("a")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.root
def test_a_default_directory_of_another_user_is_refused(
    memory: InMemoryFilesystem, temporary: Path
) -> None:
    temporary.mkdir(0o700)
    os.chown(temporary, 12345, 12345)
    with pytest.raises(SnapshotError, match="pass snapshot_dir"):
        SnapshotManager(memory).snapshot("a")


def test_a_directory_in_the_workspace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with HostFilesystem(tmp_path) as host:
        snapshots = SnapshotManager(host, tmp_path / "link" / "snaps")
        with pytest.raises(SnapshotError, match="in the workspace"):
            snapshots.snapshot("a")


def test_a_removed_archive_is_an_error_that_changes_nothing(
    fs: BaseFilesystem, tmp_path: Path
) -> None:
    snapshots = SnapshotManager(fs, tmp_path / "snaps")
    fs.write("a.txt", "one")
    snapshots.snapshot("gone").archive_path.unlink()
    fs.write("a.txt", "two")
    with pytest.raises(FileNotFoundError, match=r"has been removed.*gone\.fs\.zip"):
        snapshots.rollback("gone")
    assert fs.read("a.txt").content == "two"
    snapshots.snapshot("gone")
    assert snapshots.rollback("gone") == 1
    assert snapshots.delete("gone")


def test_an_archive_that_took_the_place_of_another_is_neither_used_nor_removed(
    memory: InMemoryFilesystem, tmp_path: Path
) -> None:
    first, second = SnapshotManager(memory, tmp_path), SnapshotManager(memory, tmp_path)
    first.snapshot("same").archive_path.unlink()
    memory.write("a.txt", "two")
    path = second.snapshot("same").archive_path
    memory.write("a.txt", "three")
    with pytest.raises(ArchiveError, match="has changed since the snapshot"):
        first.rollback("same")
    assert first.delete("same")
    assert path.is_file()
    second.rollback("same")
    assert memory.read("a.txt").content == "two"


def test_a_damaged_archive_changes_nothing(fs: BaseFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(fs, tmp_path / "snaps")
    fs.write("a.txt", "one")
    path = snapshots.snapshot("a").archive_path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ArchiveError):
        snapshots.rollback("a")
    with pytest.raises(ArchiveError):
        snapshots.restore(path)
    assert fs.read("a.txt").content == "one"


def test_the_next_snapshot_takes_over_what_is_packed(
    memory: InMemoryFilesystem, tmp_path: Path
) -> None:
    date = datetime(2024, 1, 15, tzinfo=UTC)
    snapshots = SnapshotManager(memory, tmp_path, clock=lambda: date)
    memory.write("b.txt", "b" * 1000)
    snapshots.snapshot("one")
    memory.write("a.txt", "two")
    path = snapshots.snapshot("two").archive_path
    fresh = SnapshotManager(memory, tmp_path / "fresh", clock=lambda: date).snapshot("two")
    assert path.read_bytes() == fresh.archive_path.read_bytes()


def test_any_filesystem_with_archives_will_do(tmp_path: Path) -> None:
    snapshots = SnapshotManager(Foreign(), tmp_path)
    info = snapshots.snapshot("a")
    assert info.file_count == 1
    assert stat.S_IMODE(info.archive_path.stat().st_mode) == 0o600
    assert snapshots.rollback("a") == 1


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    snapshots = SnapshotManager(Foreign(fails=True), tmp_path)
    with pytest.raises(OSError, match="No space"):
        snapshots.snapshot("a")
    assert list(tmp_path.iterdir()) == []
    assert snapshots.list_snapshots() == ()


@pytest.mark.parametrize("point", POINTS)
def test_after_a_fault_the_next_call_works(
    memory: InMemoryFilesystem, tmp_path: Path, point: str
) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    seen: list[str] = []

    def fail(reached: str) -> None:
        seen.append(reached)
        if reached == point and seen.count(point) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with fault_hook(fail):
        for snapshot_id in ("a", "a"):
            try:
                snapshots.snapshot(snapshot_id)
                snapshots.delete(snapshot_id)
            except OSError:
                continue
        snapshots.snapshot("a")
    assert point in seen
    assert snapshots.rollback("a") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.fs.zip"]


def test_what_a_killed_process_left_is_swept(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LEAVE_A_MESS, str(tmp_path)], check=False)
    mine = tmp_path / temporary_name()
    mine.mkdir()
    SnapshotManager(memory, tmp_path).snapshot("a")
    assert {path.name for path in tmp_path.iterdir()} == {"a.fs.zip", mine.name}


def test_a_kill_at_any_point_leaves_a_whole_archive_or_none(
    memory: InMemoryFilesystem, tmp_path: Path
) -> None:
    points: list[str] = []
    with fault_hook(points.append):
        SnapshotManager(memory, tmp_path / "alive").snapshot("a")
    directory = tmp_path / "killed"
    outcomes: set[bool] = set()
    for index in range(len(points)):
        assert dies_at(index, memory, directory)
        path = directory / "a.fs.zip"
        outcomes.add(path.exists())
        if path.exists():
            assert SnapshotManager(InMemoryFilesystem()).restore(path) == 1
            path.unlink()
    assert outcomes == {True, False}
    SnapshotManager(memory, directory).snapshot("next")
    assert [path.name for path in directory.iterdir()] == ["next.fs.zip"]


def dies_at(index: int, fs: InMemoryFilesystem, directory: Path) -> bool:
    child = os.fork()
    if child == 0:
        remaining = index

        def hook(_: str) -> None:
            nonlocal remaining
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1

        try:
            with fault_hook(hook):
                SnapshotManager(fs, directory).snapshot("a")
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_threads_take_snapshots_at_the_same_time(
    memory: InMemoryFilesystem, tmp_path: Path
) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    together = Barrier(4)

    def work(number: int) -> None:
        together.wait()
        for turn in range(5):
            snapshots.snapshot(f"t{number}-{turn}")
            snapshots.snapshot("shared")
            snapshots.rollback("shared")

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(snapshots.list_snapshots()) == 21
    assert len(list(tmp_path.iterdir())) == 21
    assert all(info.archive_path.is_file() for info in snapshots.list_snapshots())


def test_a_listener_may_take_a_snapshot(memory: InMemoryFilesystem, tmp_path: Path) -> None:
    snapshots = SnapshotManager(memory, tmp_path)
    snapshots.snapshot("before")

    def keep(event: FilesystemEvent) -> None:
        snapshots.snapshot("after")

    unsubscribe = memory.subscribe(keep)
    memory.write("a.txt", "two")
    unsubscribe()
    snapshots.rollback("before")
    snapshots.rollback("after")
    assert memory.read("a.txt").content == "two"


class Foreign(MockFilesystem):
    """A backend that shares no code with ours and writes archives in its own way."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self._fails = fails

    def export_archive(self, path: Path) -> int:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("files/a.txt", "one")
            if self._fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.chmod(0o644)
        return 1

    def import_archive(self, path: Path) -> int:
        with zipfile.ZipFile(path) as file:
            return len(file.namelist())
