"""The plan of a mount, made without reading any file, and the copy of its files.

Every host entry is copied, skipped with a reason in the report, or an error. No entry is
rejected for its name: whatever exists on disk can be mounted.
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
    OpenDescriptor,
    TimeLimitError,
    check_time,
    explain_error,
    join,
    os_error,
    read_range,
)

_MAX_ENTRIES = 1_000_000  # followed links can multiply a small tree without limit


class MountedFile(NamedTuple):
    """A file to copy: its destination, its place on the host, and its metadata in the plan."""

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
        """The path relative to the host path; the name, for a single file."""
        mount_path = self.plan.mount_path
        if self.path == mount_path:
            return self.name
        return self.path[len(mount_path) + 1 :] if mount_path else self.path


class MountPlan:
    """What one mount will copy; every entry found is accounted for.

    Raises:
        PathEscapeError: The host path is not below an allowed root.
        PermissionError: The host path itself is a link, a special file or unreadable.
        LimitExceededError: The files are larger than `max_bytes`, or too many.
    """

    def __init__(self, mount: HostMount, roots: AllowedRoots) -> None:
        """Scan the host path of `mount`."""
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
        self.mount_path: str = mount_target(mount, start.requested)
        self.host_path: str = str(start.root.path / start.path)
        self._collect(_HostEntry(start.root, start.path, "", self.mount_path, ()))
        self.files.sort(key=attrgetter("path"))
        self.directories.sort()
        self._check_size()

    def skip(self, path: str, reason: str) -> None:
        """Record a skipped entry with its reason; the path is relative to the host path."""
        self.skipped.append(SkippedEntry(path, reason))

    def _collect(self, start: "_HostEntry") -> None:
        """Scan everything at and below `start`, without recursion."""
        pending = [start]
        while pending:
            check_time("Mount")
            place = pending.pop()
            try:
                found, _target = place.root.directory.lstat(place.path)
                if stat.S_ISDIR(found.st_mode):
                    pending += self._scan_folder(place)
                else:
                    pending += self._scan_other(place, found)
            except TimeLimitError:
                raise
            except OSError as error:
                self._skip_unreadable(place, error)

    def _scan_folder(self, folder: "_HostEntry") -> "list[_HostEntry]":
        """Add a folder and its files; return the other entries to scan."""
        self._count()
        deeper: list[_HostEntry] = []
        for entry in folder.root.entries(folder.path):
            check_time("Mount")
            try:
                needs_scan = self._handle_entry(folder, entry)
            except OSError:
                needs_scan = True  # it is scanned again, by itself
            if needs_scan:
                deeper.append(folder.child(entry.name))
        if not self._filter:
            # with globs, a directory is created only for the files in it
            self.directories.append(folder.target)
        return deeper

    def _handle_entry(self, folder: "_HostEntry", entry: "os.DirEntry[str]") -> bool:
        """Add a file or skip an entry; return whether the entry must be scanned by itself."""
        name = entry.name
        if name.startswith(RESERVED_PREFIX):
            self._skip(folder.child(name), "reserved name")
        elif entry.is_file(follow_symlinks=False):
            found = entry.stat(follow_symlinks=False)
            if not self._is_bounded or self._wants(folder.child(name), found):
                self._add_file(join(folder.target, name), folder.root, folder.path, name, found)
        elif self._filter and self._is_pruned(folder, entry):
            self.filtered_count += 1
        else:
            return True
        return False

    def _is_pruned(self, folder: "_HostEntry", entry: "os.DirEntry[str]") -> bool:
        below = join(folder.below, entry.name)
        return entry.is_dir(follow_symlinks=False) and self._filter.prunes(below)

    def _scan_other(self, place: "_HostEntry", found: os.stat_result) -> "list[_HostEntry]":
        """Add a single file, or return the target of a link."""
        if stat.S_ISREG(found.st_mode):
            if self._wants(place, found):
                folder, _, name = place.path.rpartition("/")
                self._add_file(place.target, place.root, folder, name, found)
        elif not stat.S_ISLNK(found.st_mode):
            self._skip(place, "not a regular file")
        elif not self._mount.follow_symlinks:
            self._skip(place, "symbolic link")
        else:
            return self._follow_link(place)
        return []

    def _follow_link(self, link: "_HostEntry") -> "list[_HostEntry]":
        """Return the target of a link, if it is allowed."""
        self._count()
        here = link.root.path / link.path
        try:
            found = self._roots.resolve_link(here)
        except FileNotFoundError:
            self._skip(link, "symbolic link to nothing")
            return []
        if found is None:
            self._skip(link, "symbolic link to outside the allowed roots")
            return []
        root, path = found
        real = root.path / path
        if real in link.followed or here.is_relative_to(real):
            self._skip(link, "symbolic link to a directory above it")
            return []
        return [_HostEntry(root, path, link.below, link.target, (*link.followed, real))]

    def _wants(self, place: "_HostEntry", found: os.stat_result) -> bool:
        limit = self._mount.max_file_bytes
        if self._filter and not self._filter.wants(place.relative_path):
            self.filtered_count += 1
        elif limit is not None and found.st_size > limit:
            self._skip_large(place, found.st_size, limit)
        else:
            return True
        return False

    def _add_file(
        self, path: str, root: Root, folder: str, name: str, found: os.stat_result
    ) -> None:
        self._count()
        size, permissions = found.st_size, found.st_mode & 0o777
        self.files.append(
            MountedFile(path, self, root, folder, name, size, permissions, found.st_mtime_ns)
        )

    def _count(self) -> None:
        self._seen += 1
        if self._seen > _MAX_ENTRIES:
            raise LimitExceededError(f"Mount exceeds {_MAX_ENTRIES} files and directories")

    def _skip(self, place: "_HostEntry", reason: str) -> None:
        """Skip an entry that is not a file; for the host path itself this is an error."""
        if not place.below:
            text = f"Host path cannot be mounted: {reason}"
            raise os_error(errno.EPERM, self._mount.host_path, text)
        if self._filter and not self._filter.wants(place.below):
            self.filtered_count += 1
        else:
            self.skip(place.below, reason)

    def _skip_large(self, place: "_HostEntry", size: int, limit: int) -> None:
        if not place.below:
            raise LimitExceededError(
                f"Mount exceeds max_file_bytes of {limit}: {size} bytes in"
                f" {self._mount.host_path!r}"
            )
        self.skip(place.below, f"larger than max_file_bytes: {size} bytes")

    def _skip_unreadable(self, place: "_HostEntry", error: OSError) -> None:
        """Skip an unreachable entry; other errors, such as I/O errors, are raised."""
        if not place.below or not is_skippable(error):
            raise explain_error(error, place.below or self._mount.host_path) from None
        self.skip(place.below, error.strerror or str(error))

    def _check_size(self) -> None:
        limit = self._mount.max_bytes
        total = sum(file.size for file in self.files)
        if limit is not None and total > limit:
            raise LimitExceededError(
                f"Mount exceeds max_bytes of {limit}: {total} bytes in {self._mount.host_path!r}"
            )


class _HostEntry(NamedTuple):
    """A host entry: its place, its path relative to the host path, and its destination.

    `followed` holds the targets of the links that were followed to it.
    """

    root: Root
    path: str
    below: str
    target: str
    followed: tuple[Path, ...]

    @property
    def relative_path(self) -> str:
        """The path relative to the mount; the name, for a single file."""
        return self.below or self.path.rpartition("/")[2] or "."

    def child(self, name: str) -> "_HostEntry":
        """Return the entry `name` in this folder."""
        path, below, target = (join(each, name) for each in (self.path, self.below, self.target))
        return _HostEntry(self.root, path, below, target, self.followed)


_CHUNK = 16 * 1024 * 1024
Store: TypeAlias = Callable[[MountedFile, bytes | Iterator[bytes]], None]
"""Stores the bytes of a file; a large file comes in several pieces."""


class MountCopy:
    """Copies the files of one plan, and collects the facts for the report."""

    def __init__(self, plan: MountPlan) -> None:
        """Start with no file copied."""
        self.plan = plan
        self._paths: list[str] = []
        self._changed: list[str] = []
        self._size = 0
        self._binary = 0

    def run(self, files: Iterable[MountedFile], store: Store, meter: ProgressMeter) -> None:
        """Pass each file to `store`; a file that cannot be reached any more is skipped."""
        for (root, folder), group in groupby(files, key=attrgetter("root", "folder")):
            try:
                directory = root.directory.open_directory(folder)
            except OSError as error:
                for file in group:
                    self._skip(file, error, meter)
                continue
            with OpenDescriptor(directory):
                for file in group:
                    check_time("Mount")
                    self._copy(directory, file, store, meter)

    def report(self) -> MountReport:
        """Return the report."""
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
        with OpenDescriptor(descriptor):
            if file.size <= _CHUNK:
                store(file, self._read_piece(descriptor, file, 0))
            else:
                store(file, self._read_pieces(descriptor, file, meter))
                found = os.fstat(descriptor)  # it may have changed while it was read
        self._paths.append(file.path)
        if (
            found.st_mtime_ns != file.modified
            or found.st_size != file.size
            or self._size - copied != file.size
        ):
            self._changed.append(file.path)
        meter.add(1, min(file.size, _CHUNK))

    def _read_pieces(
        self, descriptor: int, file: MountedFile, meter: ProgressMeter
    ) -> Iterator[bytes]:
        yield self._read_piece(descriptor, file, 0)
        for offset in range(_CHUNK, file.size, _CHUNK):
            check_time("Mount")
            yield self._read_piece(descriptor, file, offset)
            meter.add(0, min(_CHUNK, file.size - offset))

    def _read_piece(self, descriptor: int, file: MountedFile, offset: int) -> bytes:
        try:
            data = read_range(descriptor, offset, min(_CHUNK, file.size - offset))
        except OSError as error:
            raise explain_error(error, file.below) from None
        self._size += len(data)
        if offset == 0 and is_binary(data):
            self._binary += 1
        return data

    def _skip(self, file: MountedFile, error: OSError, meter: ProgressMeter) -> None:
        """Skip a file that was removed meanwhile; if it is the host path itself, raise."""
        if file.path == self.plan.mount_path or not is_skippable(error):
            raise explain_error(error, file.below) from None
        self.plan.skip(file.below, error.strerror or str(error))
        meter.add(1, file.size)
