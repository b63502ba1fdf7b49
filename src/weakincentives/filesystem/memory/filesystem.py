"""A workspace in memory: a tree of dictionaries that is copied only where it changes.

Every directory belongs to an *edition*. A directory of the current edition is
changed in place; one of an older edition is copied first, with its parents. Ending
an edition therefore freezes the whole tree in one step: that is how a search gets a
stable view and a directory is copied at no cost.
"""

import errno
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from uuid import uuid4

from weakincentives.filesystem.backend import BaseFilesystem
from weakincentives.filesystem.base import ReadableFilesystem, SearchableFilesystem
from weakincentives.filesystem.diff import Diff, diff
from weakincentives.filesystem.events import FileDeleted
from weakincentives.filesystem.limits import Limits
from weakincentives.filesystem.memory.history import MemoryHistory
from weakincentives.filesystem.memory.nodes import (
    CopyOnWriteDict,
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    NodeContent,
    changed_files,
    find,
    put_node,
    tree_of,
)
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.savepoints import SavepointStorage
from weakincentives.filesystem.state import State, check_restorable
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    Results,
)
from weakincentives.posix import os_error, parent_of, parents_of

MEMORY_LIMITS = Limits(max_total_bytes=256 * 1024 * 1024, max_files=1_000_000)
"""The default limits of a workspace in memory: with a quota, because memory is shared."""
MAX_MEMORY_SNAPSHOTS = 1_000
"""How many snapshots a workspace in memory keeps by default, before the oldest is forgotten."""
_Clock = Callable[[], int]


class InMemoryFilesystem(BaseFilesystem):
    """A filesystem that lives and dies with the process."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        limits: Limits = MEMORY_LIMITS,
        clock: _Clock = time.time_ns,
        max_snapshots: int | None = MAX_MEMORY_SNAPSHOTS,
        _read_only: bool = False,
    ) -> None:
        """Start empty.

        Args:
            read_only: Refuse to write.
            limits: What is allowed, with a quota.
            clock: Gives nanoseconds since the epoch.
            max_snapshots: How many snapshots are kept: with one more the oldest is
                forgotten. None keeps all of them.
        """
        super().__init__(limits=limits, read_only=read_only or _read_only)
        self._clock = clock
        self._edition = 0
        self._taken = 0
        self._history = MemoryHistory(max_snapshots)
        self._root_node = DirectoryNode(CopyOnWriteDict(), self._edition, clock())
        self._savepoint_roots: list[DirectoryNode] = []

    @property
    def root(self) -> str:
        """The root is nowhere on disk."""
        return "/"

    @property
    def history(self) -> MemoryHistory:
        """The snapshots that can be restored: to list and to forget."""
        return self._history

    # --- reading ---

    def _lookup(self, path: str) -> FileStat | None:
        node = self._find(path)
        return None if node is None else node.stat(path)

    def _children(self, path: str) -> Children:
        files: list[str] = []
        directories: list[str] = []
        symlinks: list[str] = []
        for name, node in self._directory(path):
            if type(node) is FileNode:
                files.append(name)
            elif type(node) is DirectoryNode:
                directories.append(name)
            else:
                symlinks.append(name)
        return Children(files, directories, symlinks)

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        found = sorted(self._directory(path))
        prefix = path + "/" if path else ""
        entries = [node.entry(name, prefix + name) for name, node in found[:limit]]
        return Results(entries, reason="entry limit" if len(found) > limit else None)

    def _open(self, path: str) -> NodeContent:
        node = self._find(path)
        if type(node) is not FileNode:
            raise os_error(errno.ENOENT, path)
        return NodeContent(node)

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=parent_of):
            children = dict(self._directory(folder))
            for path in files:
                node = children.get(path.rpartition("/")[2])
                if type(node) is FileNode:
                    yield path, NodeContent(node)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._lock.mutex:
            chain, name = self._owned(path)
            old = chain[-1].children.get(name)
            if exclusive and old is not None:
                raise os_error(errno.EEXIST, path)
            now = created = self._clock()
            if type(old) is FileNode:
                permissions = old.permissions if permissions is None else permissions
                created = old.created
            mode = 0o644 if permissions is None else permissions
            put_node(chain, name, FileNode(data, mode, created, now), now)

    def _append(self, path: str, data: bytes) -> None:
        self._store(path, self._bytes(path) + data)

    def _copy_file(self, found: FileStat, target: str) -> None:
        self._store(target, self._bytes(found.path), permissions=found.permissions)

    def _bytes(self, path: str) -> bytes:
        """Return the bytes of a file; they are in memory, so however many there are."""
        content = self._open(path)
        return content.read(0, content.size)

    def _make_directory(self, path: str) -> None:
        if self._find(path) is not None:
            raise os_error(errno.EEXIST, path)
        now = self._clock()
        self._place_node(path, DirectoryNode(CopyOnWriteDict(), self._edition, now), now)

    def _make_link(self, path: str, target: str) -> None:
        now = self._clock()
        self._place_node(path, LinkNode(target, now), now)

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
        self._root_node = DirectoryNode(CopyOnWriteDict(), self._edition, self._clock())
        self._listeners.tell(FileDeleted(".", "directory"))

    def _weight(self, path: str) -> tuple[int, int]:
        node = self._find(path)
        return (0, 0) if node is None else (node.size, node.count)

    # --- snapshots ---

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state until it is forgotten; it costs nothing.

        What became of the returned value does not matter: any copy of it restores.
        """
        with self._lock:
            self._edition += 1
            self._taken += 1
            kept = FilesystemSnapshot(
                uuid4(), datetime.now(UTC), f"mem-{self._taken}", self.root, None, tag
            )
            self._history.add(kept, self._root_node)
        return kept

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a snapshot until the returned function is called, whatever is forgotten."""
        return self._history.pin(snapshot)

    def restore(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> None:
        """Make everything as it was then, or only what is at and below `paths`.

        What was made since is gone.

        Raises:
            SnapshotRestoreError: It cannot be done, and nothing has changed.
        """
        self._refuse_read_only("")
        with self._lock:
            restored = self._restored(snapshot, paths)
            self._quota.check(restored.size, restored.count - 1)
            self._root_node = restored
            self._edition += 1
            self._emit_replaced("restore", snapshot.commit_ref)

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> Diff:
        """Return what `restore` with the same arguments would change."""
        with self._lock.mutex:
            return diff(self, self._view_of(self._restored(snapshot, paths)))

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state that a snapshot keeps, to read and compare."""
        with self._lock.mutex:
            return self._view_of(self._kept_root(snapshot))

    def _restored(self, snapshot: FilesystemSnapshot, paths: Sequence[str] | None) -> DirectoryNode:
        """Return the tree that a restore gives; nothing has changed yet."""
        kept = self._kept_root(snapshot)
        if paths is None:
            return kept
        wanted, here = outermost(paths), self._root_node
        check_restorable(State(self), State(self._view_of(kept)), wanted)
        self._edition += 1  # nothing of the present tree may change
        try:
            for path in wanted:
                self._bring_back(path, kept)
            return self._root_node
        finally:
            self._root_node = here
            self._edition += 1

    def _bring_back(self, path: str, kept: DirectoryNode) -> None:
        if not path:
            self._root_node = kept
            return
        node, now = find(kept, path), self._clock()
        for parent in parents_of(path) if node is not None else ():
            if self._find(parent) is None:
                self._place_node(parent, _emptied(find(kept, parent), self._edition, now), now)
        self._place_node(path, node, now)

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Iterable[str] | None:
        root = tree_of(State(state), self._edition, self._clock())
        self._quota.check(root.size, root.count - 1)
        before, self._root_node = self._root_node, root
        return changed_files(before, root) if self._listeners else []

    def _kept_root(self, snapshot: FilesystemSnapshot) -> DirectoryNode:
        return self._history.root_of(snapshot)

    # --- the tree ---

    def _find(self, path: str) -> Node | None:
        with self._lock.mutex:
            return find(self._root_node, path)

    def _directory(self, path: str) -> list[tuple[str, Node]]:
        with self._lock.mutex:
            node = self._find(path)
            if type(node) is not DirectoryNode:
                raise os_error(errno.ENOTDIR, path)
            return node.children.items()

    def _place_node(self, path: str, node: Node | None, now: int) -> None:
        """Put `node` at `path` (None: take away what is there); the parent exists."""
        with self._lock.mutex:
            chain, name = self._owned(path)
            put_node(chain, name, node, now)

    def _owned(self, path: str) -> tuple[list[DirectoryNode], str]:
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

    def _own(self, node: Node | None) -> DirectoryNode:
        if type(node) is not DirectoryNode:
            raise TypeError("A parent is not a directory")
        return node if node.edition == self._edition else node.copied(self._edition)

    def _stable(self) -> SearchableFilesystem:
        """Return the present state as a filesystem of its own that nobody changes."""
        with self._lock.mutex:
            self._edition += 1
            return self._view_of(self._root_node)

    def _savepoint_storage(self) -> SavepointStorage:
        return _TreeStack(self)

    def _view_of(self, root: DirectoryNode) -> "InMemoryFilesystem":
        view = InMemoryFilesystem(limits=self._limits, read_only=True)
        view._root_node = root
        return view


class _TreeStack:
    """The root of the tree at each open savepoint; any change makes another root."""

    __slots__ = ("_fs", "_roots")

    def __init__(self, fs: InMemoryFilesystem) -> None:
        self._fs = fs
        self._roots = fs._savepoint_roots  # pyright: ignore[reportPrivateUsage] # a part of it

    @property
    def depth(self) -> int:
        return len(self._roots)

    def begin(self) -> None:
        self._fs._edition += 1  # pyright: ignore[reportPrivateUsage] # freezes the present tree
        self._roots.append(self._fs._root_node)  # pyright: ignore[reportPrivateUsage] # a part of it

    def has_changed(self, depth: int) -> bool:
        return self._fs._root_node is not self._roots[depth]  # pyright: ignore[reportPrivateUsage] # a part of it

    def release(self, depth: int) -> None:
        del self._roots[depth:]

    def rollback(self, depth: int) -> None:
        self._fs._root_node = self._roots[depth]  # pyright: ignore[reportPrivateUsage] # a part of it
        del self._roots[depth:]


def _emptied(like: Node | None, edition: int, now: int) -> DirectoryNode:
    directory = DirectoryNode(CopyOnWriteDict(), edition, now)
    directory.permissions = like.permissions if type(like) is DirectoryNode else 0o755
    return directory
