"""Restores with other file systems mounted in the workspace: everything, or nothing."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.posix.forks import is_killed_at
from tests.safety.places import mounted, temporary_names
from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem, diff

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning"),
    pytest.mark.root,
]


@pytest.fixture
def root(light_directory: Path) -> Path:
    root = light_directory / "workspace"
    (root / "d" / "m").mkdir(parents=True)
    return root


@pytest.fixture
def disk(root: Path) -> Iterator[Path]:
    """A file system of its own at `d/m` in the workspace."""
    point = root / "d" / "m"
    with mounted(point):
        yield point


@pytest.fixture
def fs(root: Path, disk: Path) -> Iterator[HostFilesystem]:
    with opened(root) as fs:
        yield fs


def opened(root: Path) -> HostFilesystem:
    return HostFilesystem(root, cross_mounts=True, git_dir=root.parent / "store")


def fill(fs: HostFilesystem) -> None:
    fs.write("here", "1")
    fs.write("d/m/there", "1")
    fs.write("d/m/sub/deep", "1")
    fs.write("d/m/gone", "1")
    fs.mkdir("d/m/empty")


def spoil(root: Path) -> None:
    disk = root / "d" / "m"
    (root / "here").write_text("2")
    (disk / "there").write_text("2")
    (disk / "sub" / "deep").unlink()
    (disk / "sub").rmdir()
    (disk / "sub").write_text("no directory any more")
    (disk / "gone").unlink()
    (disk / "new" / "tree").mkdir(parents=True)
    (disk / "empty").chmod(0o700)


def test_what_is_on_another_file_system_comes_back(fs: HostFilesystem, root: Path) -> None:
    fill(fs)
    kept = fs.snapshot()
    spoil(root)
    fs.restore(kept)
    assert not diff(fs, fs.view(kept))
    assert temporary_names(root) == []
    before = fs.history.list()[-1]
    fs.restore(before)
    assert fs.read("d/m/sub").content == "no directory any more"
    assert fs.exists("d/m/new/tree")


def test_a_bind_mount_of_the_same_file_system_is_another_one(
    root: Path, light_directory: Path
) -> None:
    other = light_directory / "other"
    other.mkdir()
    point = root / "a name" / "b"
    point.mkdir(parents=True)
    bind = ["mount", "--bind", str(other), str(point)]
    subprocess.run(bind, check=True)
    try:
        with opened(root) as fs:
            fs.write("a name/b/f", "1")
            kept = fs.snapshot()
            (other / "f").write_text("2")
            fs.restore(kept)
            assert (other / "f").read_text() == "1"
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.mark.parametrize("point", ["change.staged", "change.exchanged", "change.changed"])
def test_a_restore_that_is_cut_off_is_finished_on_all_of_them(
    fs: HostFilesystem, root: Path, point: str
) -> None:
    fill(fs)
    kept = fs.snapshot()
    spoil(root)
    spoiled = fs.view(fs.snapshot())
    assert is_killed_at(point, lambda: fs.restore(kept))
    with opened(root) as other:
        wanted = spoiled if point == "change.staged" else fs.view(kept)
        assert not diff(other, wanted)
        assert temporary_names(root) == []


def test_a_full_disk_inside_changes_nothing(fs: HostFilesystem, root: Path, disk: Path) -> None:
    fs.write("a", "1")
    (disk / "large").write_bytes(b"0" * 800_000)
    kept = fs.snapshot()
    fs.write("a", "2")
    (disk / "large").write_bytes(b"1" * 700_000)
    with pytest.raises(SnapshotRestoreError, match="No space left"):
        fs.restore(kept)
    assert fs.read("a").content == "2"
    assert (disk / "large").read_bytes() == b"1" * 700_000
    assert temporary_names(root) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda fs: fs.restore(fs.history.list()[0]),
        lambda fs: fs.restore(fs.history.list()[0], paths=["d"]),
        lambda fs: fs.import_archive(Path(fs.root).parent / "empty.zip"),
    ],
    ids=["restore", "of a path", "import"],
)
def test_a_place_where_something_is_mounted_is_not_removed(
    root: Path, change: Callable[[HostFilesystem], object]
) -> None:
    InMemoryFilesystem().export_archive(root.parent / "empty.zip")
    (root / "d" / "m").rmdir()
    with opened(root) as fs:
        (root / "d").rmdir()
        fs.write("d", "a file")
        fs.snapshot()
        (root / "d").unlink()
        (root / "d" / "m").mkdir(parents=True)
        with mounted(root / "d" / "m"):
            fs.write("d/m/f", "there")
            with pytest.raises((OSError, SnapshotRestoreError), match="mounted here: 'd/m'"):
                change(fs)
            assert fs.read("d/m/f").content == "there"
            assert temporary_names(root) == []
            fs.write("next", "works")


def test_a_savepoint_around_a_restore_takes_all_of_it_back(fs: HostFilesystem, root: Path) -> None:
    fill(fs)
    kept = fs.snapshot()
    spoil(root)
    spoiled = fs.view(fs.snapshot())
    savepoint = fs.savepoint()
    fs.restore(kept)
    assert fs.read("d/m/there").content == "1"
    savepoint.rollback()
    assert not diff(fs, spoiled)
