"""Host folders that are copied into a workspace before an agent sees it.

Only what lies below an allowed root can be mounted. The root is opened once and
everything below it is reached through `rooted`, so neither `..` nor a link leads out,
and what is read is what was measured against `max_bytes` before.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weakincentives.filesystem.limits import LimitExceededError, check_time
from weakincentives.filesystem.paths import (
    RESERVED_PREFIX,
    InvalidPathError,
    PathEscapeError,
    VfsPath,
    join,
    normalize_path,
    parent_of,
    shown,
)
from weakincentives.filesystem.patterns import compile_filter
from weakincentives.filesystem.rooted import RootedDirectory, explained, read_range

_MAX_ENTRIES = 1_000_000  # links can multiply a small tree without end

HostRoots: TypeAlias = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder or file of the host to copy into the workspace.

    Args:
        host_path: Relative to an allowed root, or absolute and below one.
        mount_path: Where it goes; by default the path relative to the allowed root.
        include_glob: Keep only files that match one of these; without `/` by name.
        exclude_glob: Leave out files that match one of these.
        max_bytes: Refuse the mount if its files are larger together.
        follow_symlinks: Copy what links point to, as long as it is below an allowed
            root; otherwise links are skipped.
    """

    host_path: str
    mount_path: VfsPath | str | None = None
    include_glob: tuple[str, ...] = ()
    exclude_glob: tuple[str, ...] = ()
    max_bytes: int | None = None
    follow_symlinks: bool = False


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """Something on the host that was not mounted, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Return the path and the reason."""
        return f"{shown(self.path)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MountReport:
    """What a mount brought into the workspace."""

    mount_path: str
    file_count: int
    total_bytes: int
    skipped: tuple[SkippedEntry, ...] = ()

    def __str__(self) -> str:
        """Return the mount path and the sums."""
        return f"{shown(self.mount_path)} ({self.file_count} files, {self.total_bytes} bytes)"


class MountedFile(NamedTuple):
    """A file to copy: where it goes, and where it is."""

    path: str
    size: int
    permissions: int
    root: "_Root"
    source: str


class MountPlan:
    """What a mount will copy, found without reading any file; close it afterwards.

    Raises:
        PathEscapeError: The host path is below no allowed root.
        LimitExceededError: The files are larger than `max_bytes`.
    """

    def __init__(self, mount: HostMount, allowed_roots: HostRoots | None) -> None:
        """Look at what `mount` names; None allows the current directory."""
        self._mount = mount
        self._closing = ExitStack()
        self._roots = self._opened(["."] if allowed_roots is None else allowed_roots)
        self._wanted = _filter(mount)
        self.files: list[MountedFile] = []
        self.skipped: list[SkippedEntry] = []
        try:
            root, start = self._find(mount.host_path)
            self.mount_path = start if mount.mount_path is None else _path(mount.mount_path)
            self._collect(_Place(root, start, "", ()))
            self.files.sort(key=attrgetter("path"))
            self.total_bytes = sum(file.size for file in self.files)
            self._refuse_large()
        except BaseException:
            self.close()
            raise

    def contents(self) -> Iterator[tuple[MountedFile, bytes]]:
        """Yield every file with its bytes; no more of them than were there when it was found."""
        for (root, folder), files in groupby(self.files, key=_folder):
            descriptor = root.directory.open_directory(folder)
            try:
                for file in files:
                    check_time("Mount")
                    yield file, root.read(descriptor, file.source, file.size)
            finally:
                os.close(descriptor)

    def report(self) -> MountReport:
        """Return what the workspace gets."""
        skipped = tuple(sorted(self.skipped, key=attrgetter("path")))
        return MountReport(self.mount_path or ".", len(self.files), self.total_bytes, skipped)

    def close(self) -> None:
        """Close the roots."""
        self._closing.close()

    def _opened(self, roots: HostRoots) -> "list[_Root]":
        if isinstance(roots, str | bytes | os.PathLike):
            raise TypeError(f"allowed_roots must be a sequence of paths, not one: {roots!r}")
        opened = [_Root(Path(root)) for root in roots]
        for root in opened:
            self._closing.callback(root.directory.close)
        return opened

    def _find(self, host_path: str) -> "tuple[_Root, str]":
        """Return the allowed root that holds `host_path`, and the path below it."""
        for root in self._roots:
            relative = root.relative(host_path)
            if relative is not None and root.exists(relative):
                return root, relative
        if any(root.relative(host_path) is not None for root in self._roots):
            raise FileNotFoundError(2, "Host path does not exist", host_path)
        raise PathEscapeError(f"Host path escapes root: {host_path!r} is below no allowed root")

    def _collect(self, start: "_Place") -> None:
        """Look at everything at and below `start`, without recursion."""
        pending = [start]
        for _ in range(_MAX_ENTRIES):
            if not pending:
                return
            check_time("Mount")
            place = pending.pop()
            try:
                found, _target = place.root.directory.lstat(place.path)
                if stat.S_ISDIR(found.st_mode):
                    pending += self._folder(place)
                else:
                    pending += self._other(place, found)
            except OSError as error:
                self._skip(place, error.strerror or str(error))
        raise LimitExceededError(f"Mount exceeds {_MAX_ENTRIES} folders")

    def _folder(self, folder: "_Place") -> "list[_Place]":
        """Take the files of a folder; return what else there is to look at."""
        deeper: list[_Place] = []
        for entry in folder.root.entries(folder.path):
            name = entry.name
            if name.startswith(RESERVED_PREFIX):
                self._skip(folder.inner(name), "reserved name")
            elif entry.is_file(follow_symlinks=False):
                self._add(folder, name, entry.stat(follow_symlinks=False))
            else:
                deeper.append(folder.inner(name))
        return deeper

    def _other(self, place: "_Place", found: os.stat_result) -> "list[_Place]":
        """Take a single file, or return what is behind a link."""
        if stat.S_ISREG(found.st_mode):
            self._add(place, "", found)
        elif not stat.S_ISLNK(found.st_mode):
            self._skip(place, "not a regular file")
        elif not self._mount.follow_symlinks:
            self._skip(place, "symbolic link")
        else:
            return self._behind(place)
        return []

    def _behind(self, link: "_Place") -> "list[_Place]":
        """Return what a link points to, if that is allowed."""
        here = link.root.path / link.path
        real = os.path.realpath(here)
        if real in link.way or here.is_relative_to(real):
            self._skip(link, "symbolic link to itself")
            return []
        for root in self._roots:
            relative = root.relative(real)
            if relative is not None and root.exists(relative):
                return [_Place(root, relative, link.below, (*link.way, real))]
        self._skip(link, "symbolic link to nothing, or to outside the allowed roots")
        return []

    def _add(self, place: "_Place", name: str, found: os.stat_result) -> None:
        """Take the file `name` of a folder, or what is at `place` itself."""
        below = join(place.below, name) if name else place.below
        if self._wanted is not None and not self._wanted(below or place.shown):
            return
        target = join(self.mount_path, below) if below else self.mount_path
        source = join(place.path, name) if name else place.path
        permissions = found.st_mode & 0o777
        self.files.append(MountedFile(target, found.st_size, permissions, place.root, source))

    def _skip(self, place: "_Place", reason: str) -> None:
        self.skipped.append(SkippedEntry(place.shown, reason))

    def _refuse_large(self) -> None:
        limit = self._mount.max_bytes
        if limit is not None and self.total_bytes > limit:
            raise LimitExceededError(
                f"Mount exceeds max_bytes of {limit}:"
                f" {self.total_bytes} bytes in {self._mount.host_path!r}"
            )


class _Place(NamedTuple):
    """Something on the host: where it is, where it goes below the mount, how we came.

    `way` holds the folders that links on the way led to.
    """

    root: "_Root"
    path: str
    below: str
    way: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The path below the mount; of a single file the name."""
        return self.below or self.path.rpartition("/")[2] or "."

    def inner(self, name: str) -> "_Place":
        """Return what is called `name` in this folder."""
        return _Place(self.root, join(self.path, name), join(self.below, name), self.way)


class _Root:
    """An allowed root, open."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._given = Path(os.path.abspath(path))  # noqa: PTH100 # the spelling, links kept
        self.directory = RootedDirectory(path, cross_mounts=True)

    def relative(self, host_path: str) -> str | None:
        """Return the path below this root, or None if it leads elsewhere."""
        if not os.path.isabs(host_path):  # noqa: PTH117 # a question about the text
            try:
                return normalize_path(host_path)
            except PathEscapeError:
                return None
        plain = os.path.normpath(host_path)
        for base in (self.path, self._given):
            if Path(plain).is_relative_to(base):
                return normalize_path(str(Path(plain).relative_to(base)))
        return None

    def exists(self, path: str) -> bool:
        try:
            self.directory.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise explained(error, path) from None
        return True

    def entries(self, path: str) -> "Iterator[os.DirEntry[str]]":
        descriptor = self.directory.open_directory(path)
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)

    def read(self, directory: int, path: str, size: int) -> bytes:
        try:
            descriptor, found = self.directory.open_listed(directory, path.rpartition("/")[2])
            try:
                return read_range(descriptor, 0, min(size, found.st_size))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise explained(error, path) from None


def _folder(file: MountedFile) -> "tuple[_Root, str]":
    return file.root, parent_of(file.source)


def _filter(mount: HostMount) -> Callable[[str], bool] | None:
    for given in (mount.include_glob, mount.exclude_glob):
        if isinstance(given, str):
            raise TypeError(f"A mount's globs must be a sequence of patterns, not one: {given!r}")
    if not mount.include_glob and not mount.exclude_glob:
        return None
    include = [compile_filter(pattern) for pattern in mount.include_glob]
    exclude = [compile_filter(pattern) for pattern in mount.exclude_glob]

    def wanted(path: str) -> bool:
        included = not include or any(matches(path) for matches in include)
        return included and not any(matches(path) for matches in exclude)

    return wanted


def _path(path: VfsPath | str) -> str:
    normal = normalize_path(str(path))
    if any(segment.startswith(RESERVED_PREFIX) for segment in normal.split("/")):
        raise InvalidPathError(f"Mount path is reserved: {normal!r}")
    return normal
