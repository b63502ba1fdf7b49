"""Atomic changes, with and without the system calls of new kernels."""

import errno
import inspect
import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from weakincentives.posix import RESERVED_PREFIX, atomic, fault_hook

# a name of this machine whose maker is long gone: no process has such a number
LEFT = f"{RESERVED_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino:x}-999999999-1-"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["renameat2", "ENOSYS", "EINVAL"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel or file system that can rename without replacing, or cannot."""
    if request.param != "renameat2":
        code = getattr(errno, request.param)
        monkeypatch.setattr(atomic, "_renameat2", lambda *_: code)
    return request.param


def store(directory: int, name: str, data: bytes, **options: object) -> None:
    atomic.store_file(directory, name, lambda target: atomic.write_all(target, data), **options)  # pyright: ignore[reportArgumentType] # options are passed on


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_file_is_created_and_replaced(directory: int, tmp_path: Path) -> None:
    store(directory, "f", b"one")
    store(directory, "f", b"two")
    assert (tmp_path / "f").read_bytes() == b"two"
    assert names(tmp_path) == ["f"]


def test_two_names_are_exchanged_whatever_they_are(directory: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("file")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/g").write_text("inner")
    atomic.exchange((directory, "f"), (directory, "d"))
    assert (tmp_path / "d").read_text() == "file"
    assert (tmp_path / "f/g").read_text() == "inner"
    with pytest.raises(FileNotFoundError):
        atomic.exchange((directory, "f"), (directory, "missing"))
    assert names(tmp_path) == ["d", "f"]


def test_exclusive_refuses_where_there_are_no_hard_links_either(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(atomic, "_renameat2", lambda *_: errno.EINVAL)
    monkeypatch.setattr(os, "link", refuse)
    store(directory, "f", b"one", exclusive=True)
    with pytest.raises(FileExistsError):
        store(directory, "f", b"two", exclusive=True)
    assert (tmp_path / "f").read_bytes() == b"one"
    assert names(tmp_path) == ["f"]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling"])
def test_exclusive_refuses_whatever_is_there(directory: int, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "f"
    if kind == "file":
        path.write_text("old")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("." if kind == "link" else "nowhere")
    before = path.lstat()
    with pytest.raises(FileExistsError):
        store(directory, "f", b"new", exclusive=True)
    assert path.lstat() == before
    assert names(tmp_path) == ["f"]


@pytest.mark.usefixtures("kernel")
def test_exclusive_creates_where_nothing_is(directory: int, tmp_path: Path) -> None:
    store(directory, "f", b"new", exclusive=True)
    assert (tmp_path / "f").read_bytes() == b"new"
    assert (tmp_path / "f").stat().st_nlink == 1
    assert names(tmp_path) == ["f"]


@pytest.mark.usefixtures("kernel")
def test_a_directory_is_renamed_unless_a_full_one_is_there(directory: int, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").write_text("kept")
    with pytest.raises(OSError, match=r".") as caught:
        atomic.rename((directory, "new"), (directory, "there"), exclusive=True)
    assert caught.value.errno in {errno.EEXIST, errno.ENOTEMPTY}
    assert isinstance(caught.value, FileExistsError)
    assert (tmp_path / "there" / "kept").read_text() == "kept"
    atomic.rename((directory, "new"), (directory, "free"), exclusive=True)
    assert names(tmp_path) == ["free", "there"]


@pytest.mark.usefixtures("kernel")
def test_a_link_is_renamed_as_a_link(directory: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    atomic.rename((directory, "link"), (directory, "moved"), exclusive=True)
    assert str((tmp_path / "moved").readlink()) == "nowhere"
    assert names(tmp_path) == ["moved"]


def test_a_missing_source_is_named_by_the_system(directory: int) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.rename((directory, "missing"), (directory, "x"), exclusive=True)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o400, 0o000])
def test_replacing_keeps_the_permissions(directory: int, tmp_path: Path, mode: int) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(mode)
    is_refused = os.geteuid() != 0 and not mode & 0o200
    with pytest.raises(PermissionError) if is_refused else nullcontext():
        store(directory, "f", b"new")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, 0o6777])
def test_special_permissions_are_neither_kept_nor_given(
    directory: int, tmp_path: Path, mode: int
) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(mode)
    store(directory, "f", b"new")
    store(directory, "g", b"new", permissions=mode)
    for name in ("f", "g"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode & 0o777


def test_a_private_file_is_never_readable_by_others_on_its_way(
    directory: int, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o600)
    seen: list[tuple[int, int]] = []

    def fill(target: int) -> None:
        atomic.write_all(target, b"secret")
        found = os.fstat(target)
        seen.append((stat.S_IMODE(found.st_mode), found.st_size))

    atomic.store_file(directory, "f", fill)
    assert seen == [(0o600, 6)]


def test_the_owner_of_a_replaced_file_stays_where_we_may_set_it(
    directory: int, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("old")
    wanted = 65_534 if os.geteuid() == 0 else os.geteuid()
    os.chown(tmp_path / "f", wanted, -1)
    store(directory, "f", b"new")
    assert (tmp_path / "f").stat().st_uid == wanted


def test_a_failed_fill_leaves_the_old_file_and_no_other(directory: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    targets: list[int] = []

    def fail(target: int) -> None:
        targets.append(target)
        atomic.write_all(target, b"half")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        atomic.store_file(directory, "f", fail)
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(targets[0])


def test_data_is_written_whole_where_the_system_writes_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    descriptor = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    atomic.write_all(descriptor, b"0123456789")
    os.close(descriptor)
    assert (tmp_path / "f").read_bytes() == b"0123456789"


@pytest.mark.parametrize("code", [None, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_files_are_copied_where_the_kernel_helps_and_where_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "source").write_bytes(data)
    real, calls = os.copy_file_range, [0]

    def copy(source: int, target: int, count: int) -> int:
        calls[0] += 1
        if code is not None and calls[0] == 2:
            raise OSError(code, os.strerror(code))
        return real(source, target, min(count, 1_000_000))

    monkeypatch.setattr(os, "copy_file_range", copy)
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    atomic.copy_all(source, target)
    os.close(source)
    os.close(target)
    assert (tmp_path / "target").read_bytes() == data


def test_files_are_copied_where_python_has_no_such_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "source").write_bytes(b"content")
    source = os.open(tmp_path / "source", os.O_RDONLY)
    target = os.open(tmp_path / "target", os.O_WRONLY | os.O_CREAT)
    atomic.copy_all(source, target)
    os.close(source)
    os.close(target)
    assert (tmp_path / "target").read_bytes() == b"content"


def grow(base: Path, levels: int) -> None:
    current = os.open(base, os.O_RDONLY)
    for level in range(levels):
        os.close(os.open(f"f{level}", os.O_WRONLY | os.O_CREAT, 0o400, dir_fd=current))
        os.symlink("/", f"l{level}", dir_fd=current)
        os.mkdir("d", dir_fd=current)
        os.mkdir("e", dir_fd=current)
        deeper = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    os.close(current)


def test_a_deep_tree_is_removed_without_recursion(directory: int, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    grow(tmp_path / "t", 200)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        atomic.remove(directory, "t")
    finally:
        sys.setrecursionlimit(before)
    assert names(tmp_path) == []


def test_directories_without_permissions_are_removed(directory: int, tmp_path: Path) -> None:
    inner = tmp_path / "t" / "locked" / "inner"
    inner.mkdir(parents=True)
    (inner / "f").write_text("")
    inner.chmod(0)
    inner.parent.chmod(0o500)
    atomic.remove(directory, "t")
    assert names(tmp_path) == []


def test_a_directory_is_out_of_sight_before_it_is_emptied(directory: int, tmp_path: Path) -> None:
    (tmp_path / "t" / "deep").mkdir(parents=True)
    seen: list[bool] = []
    with fault_hook(lambda _: seen.append((tmp_path / "t").exists())):
        atomic.remove(directory, "t")
    assert seen == [False]
    assert names(tmp_path) == []


def test_what_cannot_be_removed_is_hidden_and_logged(
    directory: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "t").mkdir()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "rmdir", fail)
        atomic.remove(directory, "t")
    assert "'t' was deleted, but part of it is still on disk" in caplog.text
    assert not (tmp_path / "t").exists()


def test_removing_what_is_not_there_says_so(directory: int) -> None:
    with pytest.raises(FileNotFoundError):
        atomic.remove(directory, "missing")


def test_two_who_remove_the_same_tree_do_not_disturb_each_other(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    grow(tmp_path / "t", 5)
    scandir = os.scandir
    others = ["t"]

    def while_others(descriptor: int) -> object:
        found = scandir(descriptor)
        if others:
            atomic.remove_tree(directory, others.pop())
        return found

    monkeypatch.setattr(os, "scandir", while_others)
    atomic.remove_tree(directory, "t")
    assert names(tmp_path) == []


def test_only_an_empty_directory_is_removed_if_empty(directory: int, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "x").mkdir(parents=True)
    assert atomic.remove_if_empty(directory, "empty")
    assert not atomic.remove_if_empty(directory, "full")
    assert not atomic.remove_if_empty(directory, "missing")
    assert names(tmp_path) == ["full"]


def test_leftovers_of_every_kind_are_removed_and_links_not_followed(
    directory: int, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "f").write_text("kept")
    (tmp_path / f"{LEFT}1").write_text("")
    (tmp_path / f"{LEFT}2" / "deep").mkdir(parents=True)
    (tmp_path / f"{LEFT}4").symlink_to("kept")
    os.mkfifo(tmp_path / f"{LEFT}5")
    atomic.remove_leftovers(directory, [*names(tmp_path)[:-1], ".wink-tmp-gone"])
    assert names(tmp_path) == ["kept"]
    assert (tmp_path / "kept" / "f").read_text() == "kept"


def test_no_link_to_libc_means_the_slow_way(
    directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_libc", object())
    store(directory, "f", b"one", exclusive=True)
    with pytest.raises(FileExistsError):
        store(directory, "f", b"two", exclusive=True)
    assert (tmp_path / "f").read_bytes() == b"one"
    assert names(tmp_path) == ["f"]
