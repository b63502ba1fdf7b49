"""Another file system inside the root is entered only when asked for."""

import errno
import subprocess
from pathlib import Path

import pytest

from tests.safety.operations import OPERATIONS, Operation, outcome
from tests.safety.places import Opener, Place, mounted, mounts_below, opened
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix.rooted import RootedDirectory


@pytest.mark.parametrize("kernel", [True, False], ids=["openat2", "steps"])
@pytest.mark.parametrize("path", ["proc/version", "proc/sys/kernel/ostype", "dev/null", "sys"])
def test_the_step_into_another_mount_is_refused(path: str, kernel: bool) -> None:
    root = RootedDirectory(Path("/"), kernel=kernel)
    for step in (root.open_file, root.open_directory, lambda path: root.lstat(f"{path}/x")):
        with pytest.raises(OSError, match="cross-device") as caught:
            step(path)
        assert caught.value.errno == errno.EXDEV
    root.close()


@pytest.mark.parametrize("kernel", [True, False], ids=["openat2", "steps"])
def test_the_step_into_another_mount_is_taken_when_allowed(kernel: bool) -> None:
    root = RootedDirectory(Path("/"), kernel=kernel, cross_mounts=True)
    found, target = root.lstat("proc/sys/kernel")
    assert found.st_dev == Path("/proc/sys/kernel").stat().st_dev
    assert target is None
    root.close()


@pytest.mark.root
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_reaches_into_another_mount(
    place: Place, opener: Opener, operation: Operation
) -> None:
    point = place.workspace / "m"
    point.mkdir()
    with mounted(point), opened(place.workspace, opener) as fs:
        (point / "f").write_text("elsewhere")
        with pytest.raises(PermissionError, match="cross_mounts"):
            operation(fs, "m/f")
        assert not fs.exists("m/f")
        assert [path.name for path in point.iterdir()] == ["f"]
        assert (point / "f").read_text() == "elsewhere"


AT_THE_MOUNT = ["list", "glob", "grep", "copy_from"]


@pytest.mark.root
@pytest.mark.parametrize("name", AT_THE_MOUNT)
def test_a_mount_point_is_seen_and_not_entered(place: Place, opener: Opener, name: str) -> None:
    point = place.workspace / "m"
    point.mkdir()
    with mounted(point), opened(place.workspace, opener) as fs:
        (point / "f").write_text("elsewhere")
        assert fs.stat("m").is_directory
        assert fs.glob("m/*") == ()
        assert fs.grep("elsewhere") == ()
        with pytest.raises(PermissionError, match="cross_mounts"):
            OPERATIONS[name](fs, "m")


@pytest.mark.root
@pytest.mark.parametrize("name", ["read", "read_bytes", "content_hash", "copy_from"])
def test_a_single_file_that_is_mounted_over_is_not_read(
    place: Place, opener: Opener, light_directory: Path, name: str
) -> None:
    disk = light_directory / "disk"  # a file system of its own, wherever the others are
    disk.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    subprocess.run(small, check=True)
    try:
        (disk / "f").write_text("elsewhere")
        goal = str(place.workspace / "a" / "f.txt")
        subprocess.run(["mount", "--bind", str(disk / "f"), goal], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    with opened(place.workspace, opener) as fs:
        with pytest.raises(PermissionError, match="cross_mounts"):
            OPERATIONS[name](fs, "a/f.txt")
        assert fs.grep("elsewhere") == ()
        assert "elsewhere" not in repr(outcome(OPERATIONS["grep"], fs, "a/f.txt"))


@pytest.mark.root
def test_deleting_what_holds_a_mount_leaves_the_mount_alone(place: Place, opener: Opener) -> None:
    point = place.workspace / "holder" / "m"
    point.mkdir(parents=True)
    with mounted(point), opened(place.workspace, opener) as fs:
        (point / "f").write_text("elsewhere")
        with pytest.raises(OSError, match="busy"):
            fs.delete("holder/m", recursive=True)
        fs.delete("holder", recursive=True)
        assert not fs.exists("holder")
        [kept] = mounts_below(place.workspace)
        assert (kept / "f").read_text() == "elsewhere"
        fs.write("next", "works")


@pytest.mark.root
def test_a_mount_is_entered_when_configured(place: Place, opener: Opener) -> None:
    point = place.workspace / "m"
    point.mkdir()
    with mounted(point):
        fs = opened(place.workspace, opener, cross_mounts=True)
        fs.write("m/sub/f", "there")
        assert (point / "sub" / "f").read_text() == "there"
        assert [match.path for match in fs.grep("there")] == ["m/sub/f"]
        fs.copy("m/sub", "here")
        assert fs.read("here/f").content == "there"
        fs.delete("m/sub", recursive=True)
        assert list(point.iterdir()) == []
        fs.close()


@pytest.mark.root
def test_a_read_only_disk_gives_a_clear_error_and_changes_nothing(place: Place) -> None:
    with mounted(place.workspace):
        (place.workspace / "f").write_text("old")
        options = ["mount", "-o", "remount,ro", str(place.workspace)]
        subprocess.run(options, check=True)
        fs = HostFilesystem(place.workspace)
        for change in (
            lambda: fs.write("f", "new"),
            lambda: fs.write("f", "new", mode="append"),
            lambda: fs.write("d/new", "new"),
            lambda: fs.mkdir("d"),
            lambda: fs.delete("f"),
            lambda: fs.move("f", "g"),
            lambda: fs.copy("f", "g"),
        ):
            with pytest.raises(OSError, match="Read-only") as caught:
                change()
            assert caught.value.errno == errno.EROFS
        assert fs.read("f").content == "old"
        assert [entry.name for entry in fs.list()] == ["f"]
        fs.close()
