"""With `durable=True`, data is synced before its name, and the name before the call returns.

What reaches the disk is recorded in order. Losing power after any prefix of that order
must not show a name whose content was not synced before.
"""

import os
import stat
from itertools import groupby
from pathlib import Path

import pytest

from tests.safety.changes import CHANGES, prepare
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import RESERVED_PREFIX, atomic

Inode = int


class Recorder:
    """The order in which things were written, synced and named."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Inode]] = []
        self._write, self._copy, self._fsync = os.write, os.copy_file_range, os.fsync
        self._rename, self._renameat2 = os.rename, atomic._renameat2
        self._mkdir, self._unlink = os.mkdir, os.unlink

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "copy_file_range", self.copy)
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "rename", self.rename)
        patch.setattr(os, "mkdir", self.mkdir)
        patch.setattr(os, "unlink", self.unlink)
        patch.setattr(atomic, "_renameat2", self.renameat2)

    def write(self, descriptor: int, data: memoryview) -> int:
        self._note("write", os.fstat(descriptor))
        return self._write(descriptor, data)

    def copy(self, source: int, target: int, count: int) -> int:
        self._note("write", os.fstat(target))
        return self._copy(source, target, count)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self._note("sync", os.fstat(descriptor))

    def rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        moved = os.stat(source, dir_fd=src_dir_fd, follow_symlinks=False)
        self._rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._named(moved, target, src_dir_fd, dst_dir_fd)

    def renameat2(self, source: tuple[int, str], target: tuple[int, str], flags: int = 1) -> int:
        moved = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
        code = self._renameat2(source, target, flags)
        if code == 0:
            self._named(moved, target[1], source[0], target[0])
        return code

    def mkdir(self, name: str, mode: int = 0o777, *, dir_fd: int) -> None:
        self._mkdir(name, mode, dir_fd=dir_fd)
        self._note("change", os.fstat(dir_fd))

    def unlink(self, name: str, *, dir_fd: int) -> None:
        self._unlink(name, dir_fd=dir_fd)
        if not name.startswith(RESERVED_PREFIX):
            self._note("change", os.fstat(dir_fd))

    def _note(self, what: str, found: os.stat_result) -> None:
        self.steps.append((what, found.st_ino))

    def _named(self, moved: os.stat_result, name: str, source: int, target: int) -> None:
        if not name.startswith(RESERVED_PREFIX):
            self._note("name", moved)
        if not (stat.S_ISDIR(moved.st_mode) and name.startswith(RESERVED_PREFIX)):
            self._note("change", os.fstat(source))
        self._note("change", os.fstat(target))

    def unsynced(self) -> set[Inode]:
        """Return what was changed and not synced afterwards."""
        left: set[Inode] = set()
        for what, inode in self.steps:
            if what == "sync":
                left.discard(inode)
            elif what != "name":
                left.add(inode)
        return left

    def named_before_synced(self) -> list[Inode]:
        """Return the files that got their name while data of theirs was not on the disk."""
        dirty: set[Inode] = set()
        found: list[Inode] = []
        for what, inode in self.steps:
            if what == "write":
                dirty.add(inode)
            elif what == "sync":
                dirty.discard(inode)
            elif what == "name" and inode in dirty:
                found.append(inode)
        return found


@pytest.mark.parametrize("name", CHANGES)
def test_data_is_synced_before_its_name_and_the_name_before_the_return(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare(directory)
    recorder = Recorder()
    with HostFilesystem(directory, durable=True) as fs:
        with monkeypatch.context() as patch:
            recorder.install(patch)
            CHANGES[name](fs)
        assert recorder.named_before_synced() == []
        assert alive(recorder.unsynced(), directory) == []
        assert any(what == "sync" for what, _ in recorder.steps)


def alive(inodes: set[Inode], directory: Path) -> list[str]:
    """Return the paths of those inodes that are still in the workspace."""
    paths = [directory, *directory.rglob("*")]
    return [str(path.relative_to(directory)) for path in paths if path.lstat().st_ino in inodes]


@pytest.mark.parametrize("name", ["write", "append", "create", "copy", "copy over"])
def test_the_order_is_data_sync_name_sync(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    prepare(directory)
    recorder = Recorder()
    with HostFilesystem(directory, durable=True) as fs, monkeypatch.context() as patch:
        recorder.install(patch)
        CHANGES[name](fs)
    order = [what for what, _ in groupby(what for what, _ in recorder.steps if what != "change")]
    # a savepoint syncs its empty journal first
    assert order[-4:] == ["write", "sync", "name", "sync"]
    assert order[:-4] in ([], ["sync"])


def test_without_durable_nothing_is_synced(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(directory)
    recorder = Recorder()
    with HostFilesystem(directory) as fs, monkeypatch.context() as patch:
        recorder.install(patch)
        for change in (CHANGES["write"], CHANGES["append"], CHANGES["delete tree"]):
            change(fs)
    assert not any(what == "sync" for what, _ in recorder.steps)
