"""What a mount will copy, found without reading any file.

Everything on the host is copied, left out for a reason that the report gives, or
refused. Nothing is refused for its name: what exists on disk can be mounted.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.limits import LimitExceededError
from weakincentives.filesystem.mounts.mount import (
    HostMount,
    MountFilter,
    MountReport,
    ProgressMeter,
    SkippedEntry,
    mount_target,
)
from weakincentives.filesystem.mounts.roots import AllowedRoots, Root
from weakincentives.filesystem.text import is_binary
from weakincentives.posix import (
    RESERVED_PREFIX,
    TimeLimitError,
    check_time,
    explain_error,
    join,
    os_error,
    read_range,
)

_MAX_ENTRIES = 1_000_000  # links can multiply a small tree without end


class MountedFile(NamedTuple):
    """A file to copy: where it goes, where it is, and what it was when it was found."""

    path: str
    plan: "MountPlan"
    root: Root
    folder: str
    name: str
    size: int
    permissions: int
    modified: int

    @property
    def below(self) -> str:
        """The path below the host path; of a single file the name."""
        mount_path = self.plan.mount_path
        if self.path == mount_path:
            return self.name
        return self.path[len(mount_path) + 1 :] if mount_path else self.path


class MountPlan:
    """What one mount will copy; it accounts for every entry that it came across.

    Raises:
        PathEscapeError: The host path is below no allowed root.
        PermissionError: The host path itself is a link, a special file or unreadable.
        LimitExceededError: The files are larger than `max_bytes`, or too many.
    """

    def __init__(self, mount: HostMount, roots: AllowedRoots) -> None:
        """Look at what `mount` names."""
        self._mount = mount
        self._roots = roots
        self._filter = MountFilter(mount)
        self._is_bounded = bool(self._filter) or mount.max_file_bytes is not None
        self._seen = 0
        self.files: list[MountedFile] = []
        self.directories: list[str] = []
        self.skipped: list[SkippedEntry] = []
        self.filtered_count: int = 0
        start = roots.find(mount.host_path, follow=mount.follow_symlinks)
        self.mount_path: str = mount_target(mount, start.asked)
        self.host_path: str = str(start.root.path / start.path)
        self._collect(_Place(start.root, start.path, "", self.mount_path, ()))
        self.files.sort(key=attrgetter("path"))
        self.directories.sort()
        self._refuse_large()

    def skip(self, path: str, reason: str) -> None:
        """Leave something out, and remember why; the path is below the host path."""
        self.skipped.append(SkippedEntry(path, reason))

    def _collect(self, start: "_Place") -> None:
        """Look at everything at and below `start`, without recursion."""
        pending = [start]
        while pending:
            check_time("Mount")
            place = pending.pop()
            try:
                found, _target = place.root.directory.lstat(place.path)
                if stat.S_ISDIR(found.st_mode):
                    pending += self._folder(place)
                else:
                    pending += self._other(place, found)
            except TimeLimitError:
                raise
            except OSError as error:
                self._skip_unreadable(place, error)

    def _folder(self, folder: "_Place") -> "list[_Place]":
        """Take a folder and its files; return what else there is to look at."""
        self._count()
        deeper: list[_Place] = []
        for entry in folder.root.entries(folder.path):
            check_time("Mount")
            try:
                is_more = self._is_passed(folder, entry)
            except OSError:
                is_more = True  # it is looked at again, by itself
            if is_more:
                deeper.append(folder.inner(entry.name))
        if not self._filter:
            # with globs, a directory comes with the files in it
            self.directories.append(folder.target)
        return deeper

    def _is_passed(self, folder: "_Place", entry: "os.DirEntry[str]") -> bool:
        """Take a file, or leave something out; return whether there is more to look at."""
        name = entry.name
        if name.startswith(RESERVED_PREFIX):
            self._skip(folder.inner(name), "reserved name")
        elif entry.is_file(follow_symlinks=False):
            found = entry.stat(follow_symlinks=False)
            if not self._is_bounded or self._wants(folder.inner(name), found):
                self._take(join(folder.target, name), folder.root, folder.path, name, found)
        elif self._filter and self._is_pruned(folder, entry):
            self.filtered_count += 1
        else:
            return True
        return False

    def _is_pruned(self, folder: "_Place", entry: "os.DirEntry[str]") -> bool:
        below = join(folder.below, entry.name)
        return entry.is_dir(follow_symlinks=False) and self._filter.prunes(below)

    def _other(self, place: "_Place", found: os.stat_result) -> "list[_Place]":
        """Take a single file, or return what is behind a link."""
        if stat.S_ISREG(found.st_mode):
            if self._wants(place, found):
                folder, _, name = place.path.rpartition("/")
                self._take(place.target, place.root, folder, name, found)
        elif not stat.S_ISLNK(found.st_mode):
            self._skip(place, "not a regular file")
        elif not self._mount.follow_symlinks:
            self._skip(place, "symbolic link")
        else:
            return self._behind(place)
        return []

    def _behind(self, link: "_Place") -> "list[_Place]":
        """Return what a link points to, if that is allowed."""
        self._count()
        here = link.root.path / link.path
        try:
            found = self._roots.behind(here)
        except FileNotFoundError:
            self._skip(link, "symbolic link to nothing")
            return []
        if found is None:
            self._skip(link, "symbolic link to outside the allowed roots")
            return []
        root, path = found
        real = root.path / path
        if real in link.way or here.is_relative_to(real):
            self._skip(link, "symbolic link back to where it is found")
            return []
        return [_Place(root, path, link.below, link.target, (*link.way, real))]

    def _wants(self, place: "_Place", found: os.stat_result) -> bool:
        limit = self._mount.max_file_bytes
        if self._filter and not self._filter.wants(place.shown):
            self.filtered_count += 1
        elif limit is not None and found.st_size > limit:
            self._skip_large(place, found.st_size, limit)
        else:
            return True
        return False

    def _take(self, path: str, root: Root, folder: str, name: str, found: os.stat_result) -> None:
        self._count()
        size, permissions = found.st_size, found.st_mode & 0o777
        self.files.append(
            MountedFile(path, self, root, folder, name, size, permissions, found.st_mtime_ns)
        )

    def _count(self) -> None:
        self._seen += 1
        if self._seen > _MAX_ENTRIES:
            raise LimitExceededError(f"Mount exceeds {_MAX_ENTRIES} files and directories")

    def _skip(self, place: "_Place", reason: str) -> None:
        """Leave out what is no file; what the mount itself names is refused instead."""
        if not place.below:
            text = f"Host path cannot be mounted: {reason}"
            raise os_error(errno.EPERM, self._mount.host_path, text)
        if self._filter and not self._filter.wants(place.below):
            self.filtered_count += 1
        else:
            self.skip(place.below, reason)

    def _skip_large(self, place: "_Place", size: int, limit: int) -> None:
        if not place.below:
            raise LimitExceededError(
                f"Mount exceeds max_file_bytes of {limit}: {size} bytes in"
                f" {self._mount.host_path!r}"
            )
        self.skip(place.below, f"larger than max_file_bytes: {size} bytes")

    def _skip_unreadable(self, place: "_Place", error: OSError) -> None:
        """Leave out what cannot be reached; a machine that fails is another matter."""
        if not place.below or not is_skippable(error):
            raise explain_error(error, place.below or self._mount.host_path) from None
        self.skip(place.below, error.strerror or str(error))

    def _refuse_large(self) -> None:
        limit = self._mount.max_bytes
        total = sum(file.size for file in self.files)
        if limit is not None and total > limit:
            raise LimitExceededError(
                f"Mount exceeds max_bytes of {limit}: {total} bytes in {self._mount.host_path!r}"
            )


class _Place(NamedTuple):
    """Something on the host: where it is, what it is called below the host path, where it goes.

    `way` holds the folders that links on the way led to.
    """

    root: Root
    path: str
    below: str
    target: str
    way: tuple[Path, ...]

    @property
    def shown(self) -> str:
        """The path below the mount; of a single file the name."""
        return self.below or self.path.rpartition("/")[2] or "."

    def inner(self, name: str) -> "_Place":
        """Return what is called `name` in this folder."""
        path, below, target = (join(each, name) for each in (self.path, self.below, self.target))
        return _Place(self.root, path, below, target, self.way)


_CHUNK = 16 * 1024 * 1024
Store: TypeAlias = Callable[[MountedFile, bytes | Iterator[bytes]], None]
"""Keeps the bytes of a file, which come in several pieces if it is large."""


class MountCopy:
    """The files of one plan, copied one after the other; what came of it is in the report."""

    def __init__(self, plan: MountPlan) -> None:
        """Start with nothing copied."""
        self.plan = plan
        self._paths: list[str] = []
        self._changed: list[str] = []
        self._size = 0
        self._binary = 0

    def run(self, files: Iterable[MountedFile], store: Store, meter: ProgressMeter) -> None:
        """Hand each file to `store`; one that cannot be reached any more is skipped."""
        for (root, folder), group in groupby(files, key=attrgetter("root", "folder")):
            try:
                directory = root.directory.open_directory(folder)
            except OSError as error:
                for file in group:
                    self._skip(file, error, meter)
                continue
            try:
                for file in group:
                    check_time("Mount")
                    self._copy(directory, file, store, meter)
            finally:
                os.close(directory)

    def report(self) -> MountReport:
        """Return what the workspace got."""
        plan = self.plan
        return MountReport(
            mount_path=plan.mount_path or ".",
            file_count=len(self._paths),
            total_bytes=self._size,
            skipped=tuple(sorted(plan.skipped, key=lambda entry: entry.path)),
            filtered_count=plan.filtered_count,
            binary_count=self._binary,
            changed=tuple(self._changed),
            paths=tuple(self._paths),
            host_path=plan.host_path,
        )

    def _copy(self, directory: int, file: MountedFile, store: Store, meter: ProgressMeter) -> None:
        try:
            descriptor, found = file.root.directory.open_entry(directory, file.name)
        except OSError as error:
            self._skip(file, error, meter)
            return
        copied = self._size
        try:
            if file.size <= _CHUNK:
                store(file, self._piece(descriptor, file, 0))
            else:
                store(file, self._pieces(descriptor, file, meter))
                found = os.fstat(descriptor)  # reading took a while
        finally:
            os.close(descriptor)
        self._paths.append(file.path)
        if (
            found.st_mtime_ns != file.modified
            or found.st_size != file.size
            or self._size - copied != file.size
        ):
            self._changed.append(file.path)
        meter.add(1, min(file.size, _CHUNK))

    def _pieces(self, descriptor: int, file: MountedFile, meter: ProgressMeter) -> Iterator[bytes]:
        yield self._piece(descriptor, file, 0)
        for offset in range(_CHUNK, file.size, _CHUNK):
            check_time("Mount")
            yield self._piece(descriptor, file, offset)
            meter.add(0, min(_CHUNK, file.size - offset))

    def _piece(self, descriptor: int, file: MountedFile, offset: int) -> bytes:
        try:
            data = read_range(descriptor, offset, min(_CHUNK, file.size - offset))
        except OSError as error:
            raise explain_error(error, file.below) from None
        self._size += len(data)
        if offset == 0 and is_binary(data):
            self._binary += 1
        return data

    def _skip(self, file: MountedFile, error: OSError, meter: ProgressMeter) -> None:
        """Leave out a file that has gone meanwhile; if it is all that was named, refuse."""
        if file.path == self.plan.mount_path or not is_skippable(error):
            raise explain_error(error, file.below) from None
        self.plan.skip(file.below, error.strerror or str(error))
        meter.add(1, file.size)
