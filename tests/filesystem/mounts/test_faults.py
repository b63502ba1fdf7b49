"""Faults and kills during a mount: the workspace is unchanged, or has all of it."""

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.safety.places import ROOT, mounted, temporary_names, visible
from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemEvent,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.mounts import plan as copying
from weakincentives.filesystem.testing.mounts import write_host_files
from weakincentives.posix import fault_hook

State = dict[str, bytes | str | None]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    write_host_files(tmp_path / "host", {"a/b/one": b"1", "a/two": b"2", "c": b"3", "old": b"new"})
    return tmp_path / "host"


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    """A workspace with something of everything that is to be mounted."""
    if request.param == "host":
        (tmp_path / "ws").mkdir()
    fs = InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path / "ws")
    fs.write("old", "old")
    fs.write("a/two", "mine")
    fs.write("a/mine", "mine")
    return fs


def failing_at(index: int, code: int = errno.EIO, points: str = "") -> Callable[[str], None]:
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        if point.startswith(points):
            reached += 1
            if reached == index + 1:
                raise OSError(code, os.strerror(code))

    return hook


def points_of(make: Callable[[], BaseFilesystem], host: Path) -> list[str]:
    points: list[str] = []
    with fault_hook(points.append):
        make().hydrate_from_host(HostMount("."), allowed_roots=[host])
    return points


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_fault_at_any_named_point_leaves_all_or_nothing(
    host: Path, tmp_path: Path, code: int
) -> None:
    roots = iter(tmp_path / str(number) for number in range(1_000))

    def make() -> HostFilesystem:
        root = next(roots)
        write_host_files(root, {"old": b"old", "a/two": b"mine"})
        return HostFilesystem(root)

    for index in range(len(points_of(make, host))):
        fs = make()
        before = visible(fs)
        wanted: State = {
            "a": None, "a/b": None, "a/b/one": b"1", "a/two": b"2", "c": b"3", "old": b"new",
        }  # fmt: skip
        try:
            with fault_hook(failing_at(index, code)):
                fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
        except OSError as error:
            assert error.errno == code
            wanted = before
        assert visible(fs) == wanted
        assert temporary_names(Path(fs.root)) == []
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])


@pytest.mark.parametrize("index", range(4))
def test_steps_that_were_done_are_undone(fs: BaseFilesystem, host: Path, index: int) -> None:
    before = visible(fs)
    events: list[FilesystemEvent] = []
    fs.subscribe(events.append)
    with (
        fault_hook(failing_at(index, points="mount.publish")),
        pytest.raises(OSError, match="Input/output error"),
    ):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    assert visible(fs) == before
    assert events == []


def test_the_mount_has_four_steps_to_fail_at(fs: BaseFilesystem, host: Path) -> None:
    points: list[str] = []
    with fault_hook(points.append):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    assert points.count("mount.publish") == 4


def test_what_cannot_be_undone_is_logged(
    host: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fs = InMemoryFilesystem()
    remove = fs._remove

    def stubborn(path: str) -> None:
        if path == "a":
            raise OSError(errno.EIO, "broken")
        remove(path)

    monkeypatch.setattr(fs, "_remove", stubborn)
    with (
        caplog.at_level(logging.WARNING),
        fault_hook(failing_at(2, points="mount.publish")),
        pytest.raises(OSError, match="Input/output error"),
    ):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    assert "Could not undo 'a'" in caplog.text
    assert list(visible(fs)) == ["a", "a/b", "a/two", "a/b/one"]


def test_a_fault_names_the_path_and_not_where_it_was_built(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_host_files(tmp_path, {"ws/a/mine": b""})
    fs = HostFilesystem(tmp_path / "ws")
    store = fs._store

    def full(path: str, data: bytes, **options: object) -> None:
        if data == b"1":
            raise OSError(errno.ENOSPC, "No space left on device", path)
        store(path, data, **options)  # pyright: ignore[reportArgumentType] # options are passed on

    monkeypatch.setattr(fs, "_store", full)
    with pytest.raises(OSError, match="No space left on device: 'a/b/one'"):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])


def test_a_file_that_the_disk_does_not_give_ends_the_mount(
    fs: BaseFilesystem, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = copying.read_range

    def broken(descriptor: int, offset: int, size: int) -> bytes:
        data = read(descriptor, offset, size)
        if data == b"3":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data

    monkeypatch.setattr(copying, "read_range", broken)
    before = visible(fs)
    with pytest.raises(OSError, match="Input/output error: 'c'"):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    assert visible(fs) == before


@pytest.mark.parametrize("ticks", [1, 5, 10, 13])
def test_a_mount_whose_time_is_up_changes_nothing(
    fs: BaseFilesystem, host: Path, ticks: int
) -> None:
    now = iter(range(1_000))
    before = visible(fs)
    with time_limit(ticks, clock=lambda: float(next(now))), pytest.raises(TimeLimitError):
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    assert visible(fs) == before


@pytest.mark.root
def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    write_host_files(tmp_path, {f"host/{number}": b"x" * 50_000 for number in range(20)})
    with mounted(disk, size="512k"):
        write_host_files(disk, {"5": b"mine"})
        with HostFilesystem(disk) as fs:
            before = visible(fs)
            with pytest.raises(OSError, match=r"No space left on device: '[0-9]+'"):
                fs.hydrate_from_host(HostMount("."), allowed_roots=[tmp_path / "host"])
            assert visible(fs) == before
            assert temporary_names(disk) == []
            mount = HostMount(".", include_glob=("1*",), exclude_glob=("19", "18"))
            fs.hydrate_from_host(mount, allowed_roots=[tmp_path / "host"])
            assert len(visible(fs)) == 10


def test_nobody_sees_a_mount_on_disk_before_it_is_whole(host: Path, tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    fs, other = HostFilesystem(tmp_path / "ws"), HostFilesystem(tmp_path / "ws")
    seen: list[State] = []
    fs.hydrate_from_host(
        HostMount(".", mount_path="all/of/it"),
        allowed_roots=[host],
        progress=lambda _: seen.append(visible(other)),
    )
    assert seen
    assert all(state == {} for state in seen)
    assert len(visible(other)) == 9


def kill_at_points(host: Path, mount_path: str, roots: list[Path]) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.filesystem.mounts.kill_mounts", host, mount_path, *roots],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize("mount_path", ["new/place", "."])
def test_a_kill_at_any_named_point_leaves_every_entry_old_or_new(
    host: Path, tmp_path: Path, mount_path: str
) -> None:
    def make(name: str) -> Path:
        write_host_files(tmp_path / name, {"old": b"old", "a/two": b"mine"})
        return tmp_path / name

    with HostFilesystem(make("sample")) as sample:
        before, points = visible(sample), list[str]()
        with fault_hook(points.append):
            sample.hydrate_from_host(HostMount(".", mount_path), allowed_roots=[host])
        after = visible(sample)
    roots = [make(str(number)) for number in range(len(points))]
    assert kill_at_points(host, mount_path, roots) == len(points)
    for root in roots:
        with HostFilesystem(root) as fs:
            found = visible(fs)
            if mount_path == ".":
                mixed = {path: (before.get(path), after.get(path)) for path in after}
                assert all(content in mixed[path] for path, content in found.items())
                assert before.keys() <= found.keys()
            else:  # one step: a directory that is new as a whole
                assert found in (before, after)
            assert temporary_names(root) == []
            fs.hydrate_from_host(HostMount(".", mount_path), allowed_roots=[host])
            assert visible(fs) == after


def test_snapshots_know_what_was_mounted(host: Path, tmp_path: Path) -> None:
    write_host_files(tmp_path / "ws", {"old": b"old", "a/two": b"mine"})
    with HostFilesystem(tmp_path / "ws", git_dir=tmp_path / "git", exclusive=True) as fs:
        before, old = visible(fs), fs.snapshot()
        fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
        after, new = visible(fs), fs.snapshot()
        fs.restore(old)
        assert visible(fs) == before
        fs.restore(new)
        assert visible(fs) == after
