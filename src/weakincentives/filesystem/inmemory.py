"""A workspace in memory: a tree of dictionaries that is copied only where it changes.

Every directory belongs to an *edition*. A directory of the current edition is
changed in place; one of an older edition is copied first, with its parents. Ending
an edition therefore freezes the whole tree in one step: that is how a search gets a
stable view and a directory is copied at no cost.
"""

import errno
import hashlib
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import ClassVar, TypeAlias
from uuid import UUID, uuid4

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.base import BaseFilesystem
from weakincentives.filesystem.events import FileDeleted, StateReplaced
from weakincentives.filesystem.layers import LayeredDict
from weakincentives.filesystem.limits import Limits
from weakincentives.filesystem.paths import os_error, parent_of
from weakincentives.filesystem.readable import ReadableFilesystem
from weakincentives.filesystem.searchable import SearchableFilesystem
from weakincentives.filesystem.text import BytesContent, Content, LineIndex
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    Results,
)

MEMORY_LIMITS = Limits(max_total_bytes=256 * 1024 * 1024, max_files=1_000_000)
"""The default limits of a workspace in memory: with a quota, because memory is shared."""

_Clock = Callable[[], int]


class InMemoryFilesystem(BaseFilesystem):
    """A filesystem that lives and dies with the process."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        limits: Limits = MEMORY_LIMITS,
        clock: _Clock = time.time_ns,
        _read_only: bool = False,
    ) -> None:
        """Start empty; `clock` gives nanoseconds since the epoch."""
        super().__init__(limits=limits, read_only=read_only or _read_only)
        self._clock = clock
        self._edition = 0
        self._taken = 0
        self._kept: dict[UUID, tuple[_Directory, object]] = {}
        self._root_node = _Directory(LayeredDict(), self._edition, clock())

    @property
    def root(self) -> str:
        """The root is nowhere on disk."""
        return "/"

    # --- reading ---

    def _lookup(self, path: str) -> FileStat | None:
        node = self._find(path)
        return None if node is None else node.stat(path)

    def _children(self, path: str) -> Children:
        files: list[str] = []
        directories: list[str] = []
        symlinks: list[str] = []
        for name, node in self._directory(path):
            if type(node) is _File:
                files.append(name)
            elif type(node) is _Directory:
                directories.append(name)
            else:
                symlinks.append(name)
        return Children(files, directories, symlinks)

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        found = sorted(self._directory(path))
        prefix = path + "/" if path else ""
        entries = [node.entry(name, prefix + name) for name, node in found[:limit]]
        return Results(entries, truncated=len(found) > limit)

    def _open(self, path: str) -> "_FileContent":
        node = self._find(path)
        if type(node) is not _File:
            raise os_error(errno.ENOENT, path)
        return _FileContent(node)

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=parent_of):
            children = dict(self._directory(folder))
            for path in files:
                node = children.get(path.rpartition("/")[2])
                if type(node) is _File:
                    yield path, _FileContent(node)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._lock:
            chain, name = self._owned(path)
            old = chain[-1].children.get(name)
            if exclusive and old is not None:
                raise os_error(errno.EEXIST, path)
            now = created = self._clock()
            if type(old) is _File:
                permissions = old.permissions if permissions is None else permissions
                created = old.created
            _put(chain, name, _File(data, permissions or 0o644, created, now), now)

    def _make_directory(self, path: str) -> None:
        if self._find(path) is not None:
            raise os_error(errno.EEXIST, path)
        now = self._clock()
        self._place_node(path, _Directory(LayeredDict(), self._edition, now), now)

    def _make_link(self, path: str, target: str) -> None:
        now = self._clock()
        self._place_node(path, _Link(target, now), now)

    def _remove(self, path: str) -> None:
        self._place_node(path, None, self._clock())

    def _move(self, source: str, destination: str) -> None:
        node = self._find(source)
        self._remove(source)
        self._place_node(destination, node, self._clock())

    def _copy(self, source: str, destination: str) -> None:
        node = self._find(source)
        self._edition += 1  # both places now share what is below: neither may change it
        self._place_node(destination, node, self._clock())

    def _empty(self, recursive: bool) -> None:
        if not recursive:
            super()._empty(recursive)
        self._root_node = _Directory(LayeredDict(), self._edition, self._clock())
        self._listeners.tell(FileDeleted(".", "directory"))

    def _weight(self, path: str) -> tuple[int, int]:
        node = self._find(path)
        return (0, 0) if node is None else (node.size, node.count)

    # --- snapshots ---

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state for as long as the returned value lives; it costs nothing."""
        with self._lock:
            self._edition += 1
            self._taken += 1
            kept = FilesystemSnapshot(
                uuid4(), datetime.now(UTC), f"mem-{self._taken}", self.root, None, tag
            )
            key = kept.snapshot_id
            dropped = weakref.ref(kept, lambda _: self._kept.pop(key, None))
            self._kept[key] = (self._root_node, dropped)
        return kept

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make everything as it was then; what was made since is gone."""
        self._refuse_read_only("")
        with self._lock:
            self._root_node = self._kept_root(snapshot)
            self._edition += 1
            self._listeners.tell(StateReplaced("restore", snapshot.commit_ref))

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state that a snapshot keeps, to read and compare."""
        with self._lock:
            return self._view_of(self._kept_root(snapshot))

    def _kept_root(self, snapshot: FilesystemSnapshot) -> "_Directory":
        kept = self._kept.get(snapshot.snapshot_id)
        if kept is None:
            raise SnapshotRestoreError(
                f"Unknown snapshot: {str(snapshot)!r} was dropped, or taken of another filesystem"
            )
        return kept[0]

    # --- the tree ---

    def _find(self, path: str) -> "_Node | None":
        with self._lock:
            node: _Node | None = self._root_node
            for segment in path.split("/") if path else ():
                if type(node) is not _Directory:
                    return None
                node = node.children.get(segment)
            return node

    def _directory(self, path: str) -> "list[tuple[str, _Node]]":
        with self._lock:
            node = self._find(path)
            if type(node) is not _Directory:
                raise os_error(errno.ENOTDIR, path)
            return node.children.items()

    def _place_node(self, path: str, node: "_Node | None", now: int) -> None:
        """Put `node` at `path` (None: take away what is there); the parent exists."""
        with self._lock:
            chain, name = self._owned(path)
            _put(chain, name, node, now)

    def _owned(self, path: str) -> "tuple[list[_Directory], str]":
        """Return the directories above `path`, all of the current edition, and its name."""
        *parents, name = path.split("/")
        directory = self._root_node = self._own(self._root_node)
        chain = [directory]
        for segment in parents:
            below = directory.children.get(segment)
            deeper = self._own(below)
            if deeper is not below:
                directory.children[segment] = deeper
            directory = deeper
            chain.append(directory)
        return chain, name

    def _own(self, node: "_Node | None") -> "_Directory":
        if type(node) is not _Directory:
            raise TypeError("A parent is not a directory")
        return node if node.edition == self._edition else node.copied(self._edition)

    def _stable(self) -> SearchableFilesystem:
        """Return the present state as a filesystem of its own that nobody changes."""
        with self._lock:
            self._edition += 1
            return self._view_of(self._root_node)

    def _view_of(self, root: "_Directory") -> "InMemoryFilesystem":
        view = InMemoryFilesystem(limits=self._limits, read_only=True)
        view._root_node = root
        return view


class _File:
    """Bytes that never change, with what has been learned about them."""

    __slots__ = ("created", "data", "digest", "index", "modified", "permissions")
    count: ClassVar[int] = 1

    def __init__(self, data: bytes, permissions: int, created: int, modified: int) -> None:
        self.data = data
        self.permissions = permissions
        self.created = created
        self.modified = modified
        self.digest: str | None = None
        self.index: LineIndex | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    def hash(self) -> str:
        if self.digest is None:
            self.digest = hashlib.sha256(self.data).hexdigest()
        return self.digest

    def stat(self, path: str) -> FileStat:
        return FileStat(
            path,
            is_file=True,
            is_directory=False,
            size_bytes=len(self.data),
            created_at=_date(self.created),
            modified_at=_date(self.modified),
            permissions=self.permissions,
            hasher=self.hash,
        )

    def entry(self, name: str, path: str) -> FileEntry:
        return FileEntry(name, path, True, False, len(self.data))


class _Link:
    """A symbolic link."""

    __slots__ = ("created", "target")
    count: ClassVar[int] = 1
    size: ClassVar[int] = 0

    def __init__(self, target: str, created: int) -> None:
        self.target = target
        self.created = created

    def stat(self, path: str) -> FileStat:
        date = _date(self.created)
        return FileStat(path, False, False, 0, date, date, 0o777, self.target)

    def entry(self, name: str, path: str) -> FileEntry:
        return FileEntry(name, path, False, False, None, True)


class _Directory:
    """Names and nodes; `size` and `count` include everything below, and itself."""

    __slots__ = ("children", "count", "created", "edition", "modified", "permissions", "size")

    def __init__(self, children: "LayeredDict[_Node]", edition: int, now: int) -> None:
        self.children = children
        self.edition = edition
        self.permissions = 0o755
        self.created = now
        self.modified = now
        self.size = 0
        self.count = 1

    def copied(self, edition: int) -> "_Directory":
        copy = _Directory(self.children.copy(), edition, self.created)
        copy.permissions = self.permissions
        copy.modified = self.modified
        copy.size = self.size
        copy.count = self.count
        return copy

    def stat(self, path: str) -> FileStat:
        created, modified = _date(self.created), _date(self.modified)
        return FileStat(path, False, True, 0, created, modified, self.permissions)

    def entry(self, name: str, path: str) -> FileEntry:
        return FileEntry(name, path, False, True)


_Node: TypeAlias = _File | _Link | _Directory


class _FileContent(BytesContent):
    """A file's bytes; what is learned about its lines stays with the file."""

    __slots__ = ("_file",)

    def __init__(self, file: _File) -> None:
        super().__init__(file.data)
        self._file = file

    def line_index(self) -> LineIndex:
        if self._file.index is None:
            self._file.index = LineIndex(self)
        return self._file.index


def _put(chain: list[_Directory], name: str, node: _Node | None, now: int) -> None:
    """Set or take away an entry of the last directory, and keep the sums of all of them."""
    directory = chain[-1]
    old = directory.children.get(name)
    if node is not None:
        directory.children[name] = node
    elif old is not None:
        del directory.children[name]
    directory.modified = now
    size = (node.size if node else 0) - (old.size if old else 0)
    count = (node.count if node else 0) - (old.count if old else 0)
    if size or count:
        for above in chain:
            above.size += size
            above.count += count


def _date(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
