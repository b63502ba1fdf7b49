"""The in-memory filesystem: a persistent (copy-on-write) tree, and the history of its snapshots.

Every directory belongs to an *edition*. A directory of the current edition is changed in place;
one of an older edition is copied first, with its parents. Starting a new edition therefore
freezes the whole tree in one step: snapshots, savepoints, stable views for searches and copies
of directories cost nothing.
"""

import errno
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from threading import Lock
from uuid import UUID, uuid4

from weakincentives.errors import SnapshotError, SnapshotRestoreError, StaleRestoreError
from weakincentives.filesystem.backend import TransactionalFilesystem
from weakincentives.filesystem.base import ReadableFilesystem, SearchableFilesystem
from weakincentives.filesystem.base.state import (
    Pins,
    State,
    check_restorable,
    check_snapshot,
    select_old,
    snapshot_id_of,
)
from weakincentives.filesystem.diff import Diff, diff
from weakincentives.filesystem.events import FileDeleted
from weakincentives.filesystem.limits import Limits
from weakincentives.filesystem.memory.nodes import (
    CopyOnWriteDict,
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    TreeStack,
    build_tree,
    changed_files,
    find,
    is_same,
    set_node,
)
from weakincentives.filesystem.mounts import HostMount
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.savepoints import SavepointStorage
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
"""The default limits in memory: with a quota, because memory is shared."""
MAX_MEMORY_SNAPSHOTS = 1_000
"""The number of snapshots kept in memory by default; then the oldest is forgotten."""
_MAX_FORGOTTEN_IDS = 10_000  # ids of forgotten snapshots, kept for the error message only
_Clock = Callable[[], int]


class MemoryHistory:
    """The snapshots of an in-memory filesystem, to list and to forget.

    A state is found by the id of its snapshot, so any copy of that value restores it.
    """

    def __init__(self, max_snapshots: int | None) -> None:
        """Keep the latest `max_snapshots`, or all of them if it is None.

        Raises:
            TypeError: `max_snapshots` is not an integer.
            ValueError: `max_snapshots` is less than 1.
        """
        if max_snapshots is not None and type(max_snapshots) is not int:
            raise TypeError(f"max_snapshots must be an integer, or None: {max_snapshots!r}")
        if max_snapshots is not None and max_snapshots < 1:
            raise ValueError(f"max_snapshots must be at least 1, or None: {max_snapshots}")
        self._max_snapshots = max_snapshots
        self._lock = Lock()
        self._pins = Pins()
        self._kept: dict[UUID, tuple[DirectoryNode, FilesystemSnapshot]] = {}
        self._forgotten: dict[UUID, None] = {}

    def list(self) -> Sequence[FilesystemSnapshot]:
        """Return the snapshots that can be restored, the oldest first."""
        with self._lock:
            return [snapshot for _, snapshot in self._kept.values()]

    def prune(
        self, *, keep: int | None = None, before: datetime | None = None
    ) -> Sequence[FilesystemSnapshot]:
        """Forget old snapshots and return them; one that an open transaction needs stays.

        Args:
            keep: The number of latest snapshots to keep.
            before: Forget those taken earlier than this; with `keep`, only those that are not
                among the latest.

        Raises:
            ValueError: Neither is given, `keep` is negative, or `before` has no time zone.
        """
        with self._lock:
            kept = [snapshot for _, snapshot in self._kept.values()]
            old = select_old(kept, keep=keep, before=before)
            gone = [each for each in old if not self._is_pinned(each.snapshot_id)]
            for each in gone:
                self._forget(each.snapshot_id)
        return gone

    def forget(self, *snapshots: FilesystemSnapshot | UUID | str) -> None:
        """Forget snapshots, and free the memory that only they use.

        Args:
            snapshots: Snapshots or their ids; unknown ones are ignored.

        Raises:
            SnapshotError: An open transaction needs one of them; nothing was forgotten.
        """
        ids = {snapshot_id_of(each) for each in snapshots}
        with self._lock:
            keys = [key for key in self._kept if str(key) in ids]
            for key in keys:
                if self._is_pinned(key):
                    raise SnapshotError(
                        f"Cannot delete snapshot {str(key)!r}: an open transaction needs it for"
                        " rollback"
                    )
            for key in keys:
                self._forget(key)

    def add(self, snapshot: FilesystemSnapshot, root: DirectoryNode) -> None:
        """Keep a state; forget the oldest if there are too many."""
        with self._lock:
            self._kept[snapshot.snapshot_id] = root, snapshot
            self._forget_surplus()

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Protect a state from being forgotten until the returned function is called."""
        unpin = self._pins.add(str(snapshot.snapshot_id))

        def end() -> None:
            unpin()
            with self._lock:
                self._forget_surplus()

        return end

    def root_of(self, snapshot: FilesystemSnapshot) -> DirectoryNode:
        """Return the tree of a snapshot.

        Raises:
            SnapshotRestoreError: It was forgotten, or belongs to another filesystem.
        """
        check_snapshot(snapshot)
        found = self._kept.get(snapshot.snapshot_id)
        if found is not None and found[1].commit_ref == snapshot.commit_ref:
            return found[0]
        if snapshot.snapshot_id in self._forgotten:
            kept = "" if self._max_snapshots is None else f" (max_snapshots={self._max_snapshots})"
            raise SnapshotRestoreError(f"Unknown snapshot: {str(snapshot)!r} was forgotten{kept}")
        raise SnapshotRestoreError(
            f"Unknown snapshot: {str(snapshot)!r} belongs to another filesystem,"
            " or was forgotten long ago"
        )

    def _forget_surplus(self) -> None:
        """Forget the oldest of too many, but none that is pinned, and never the latest."""
        limit = self._max_snapshots
        while limit is not None and len(self._kept) > limit:
            latest = next(reversed(self._kept))
            oldest = next(key for key in self._kept if key == latest or not self._is_pinned(key))
            if oldest == latest:
                return
            self._forget(oldest)

    def _is_pinned(self, key: UUID) -> bool:
        return str(key) in self._pins

    def _forget(self, key: UUID) -> None:
        del self._kept[key]
        self._forgotten[key] = None
        if len(self._forgotten) > _MAX_FORGOTTEN_IDS:
            del self._forgotten[next(iter(self._forgotten))]


class InMemoryFilesystem(TransactionalFilesystem):
    """A filesystem that lives and dies with the process."""

    def __init__(
        self,
        mounts: Sequence[HostMount] = (),
        *,
        read_only: bool = False,
        limits: Limits = MEMORY_LIMITS,
        clock: _Clock = time.time_ns,
        max_snapshots: int | None = MAX_MEMORY_SNAPSHOTS,
        _read_only: bool = False,
    ) -> None:
        """Start with copies of `mounts`, or empty.

        Args:
            mounts: Files below the current directory to copy; `hydrate_all_from_host` takes others.
            read_only: Raise ReadOnlyError on every write.
            limits: The limits, with a quota.
            clock: Returns nanoseconds since the epoch.
            max_snapshots: The number of snapshots to keep; then the oldest is forgotten. None
                keeps all of them.

        Raises:
            PathEscapeError: A mount is not below the current directory.
            LimitExceededError: The mounts exceed `max_bytes` or the quota.
            OSError: A mount cannot be read.
        """
        super().__init__(limits=limits)
        self._clock = clock
        self._edition: int = 0
        self._snapshot_count = 0
        self._history = MemoryHistory(max_snapshots)
        self._root_node = DirectoryNode(CopyOnWriteDict(), self._edition, clock())
        self._savepoints: list[tuple[DirectoryNode, int]] = []
        if mounts:
            self.hydrate_all_from_host(mounts)
        self._read_only = read_only or _read_only

    @property
    def root(self) -> str:
        """`/`: the filesystem is not on disk."""
        return "/"

    @property
    def history(self) -> MemoryHistory:
        """The snapshots that can be restored, to list and to forget."""
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

    def _open(self, path: str) -> Content:
        node = self._find(path)
        if type(node) is not FileNode:
            raise os_error(errno.ENOENT, path)
        return node.open()

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        for folder, files in groupby(paths, key=parent_of):
            children = dict(self._directory(folder))
            for path in files:
                node = children.get(path.rpartition("/")[2])
                if type(node) is FileNode:
                    yield path, node.open()

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        with self._lock.mutex:
            chain, name = self._writable_chain(path)
            old = chain[-1].children.get(name)
            if exclusive and old is not None:
                raise os_error(errno.EEXIST, path)
            now = created = self._clock()
            if type(old) is FileNode:
                permissions = old.permissions if permissions is None else permissions
                created = old.created
            mode = 0o644 if permissions is None else permissions
            set_node(chain, name, FileNode(data, mode, created, now), now)

    def _append(self, path: str, data: bytes) -> None:
        self._store(path, self._bytes(path) + data)

    def _copy_file(self, found: FileStat, target: str) -> None:
        self._store(target, self._bytes(found.path), permissions=found.permissions)

    def _bytes(self, path: str) -> bytes:
        """Return the bytes of a file; no memory check is needed."""
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
        self._edition += 1  # both paths share the subtree now, so neither may change it in place
        self._place_node(destination, node, self._clock())

    def _delete_root(self, *, recursive: bool) -> None:
        if not recursive:
            super()._delete_root(recursive=recursive)
        self._root_node = DirectoryNode(CopyOnWriteDict(), self._edition, self._clock())
        self._listeners.notify(FileDeleted(".", "directory"))

    def _measure(self, path: str) -> tuple[int, int]:
        node = self._find(path)
        return (0, 0) if node is None else (node.size, node.count)

    # --- snapshots ---

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state until it is forgotten; this costs nothing.

        Any copy of the returned value restores it.
        """
        with self._lock.mutex:
            self._lock.await_turn()
            self._edition += 1
            self._snapshot_count += 1
            kept = FilesystemSnapshot(
                uuid4(), datetime.now(UTC), f"mem-{self._snapshot_count}", self.root, None, tag
            )
            self._history.add(kept, self._root_node)
        return kept

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Protect a snapshot from being forgotten until the returned function is called."""
        return self._history.pin(snapshot)

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        expect: FilesystemSnapshot | None = None,
    ) -> None:
        """Restore the state of a snapshot, or only what is at and below `paths`.

        Entries created since are removed. With `expect`, only what changed from `snapshot` to this
        later state is undone: each such path must still be as in it, and everything else stays.

        Raises:
            StaleRestoreError: A path is not as in `expect`; nothing has changed.
            SnapshotRestoreError: The state cannot be restored; nothing has changed.
        """
        self._ensure_writable("")
        with self._lock.mutex:
            self._lock.await_turn()
            if expect is None:
                restored = self._restored_tree(snapshot, paths)
            else:
                restored = self._undone_tree(snapshot, expect, paths)
            self._quota.check(restored.size, restored.count - 1)
            self._root_node = restored
            self._edition += 1
            self._emit_replaced("restore", snapshot.commit_ref)

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> Diff:
        """Return what `restore` with the same arguments would change."""
        with self._lock.mutex:
            return diff(self, self._view_of(self._restored_tree(snapshot, paths)))

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state of a snapshot as a read-only filesystem."""
        with self._lock.mutex:
            return self._view_of(self._snapshot_root(snapshot))

    def _restored_tree(
        self, snapshot: FilesystemSnapshot, paths: Sequence[str] | None
    ) -> DirectoryNode:
        """Return the tree that a restore results in; nothing has changed yet."""
        kept = self._snapshot_root(snapshot)
        if paths is None:
            return kept
        wanted = outermost(paths)
        check_restorable(State(self), State(self._view_of(kept)), wanted)
        with self._draft():
            for path in wanted:
                self._restore_path(path, kept)
            return self._root_node

    def _undone_tree(
        self, snapshot: FilesystemSnapshot, expect: FilesystemSnapshot, paths: Sequence[str] | None
    ) -> DirectoryNode:
        """Return the tree without the changes from `snapshot` to `expect`."""
        then, later = self._snapshot_root(snapshot), self._snapshot_root(expect)
        views = self._view_of(then), self._view_of(later)
        changes = diff(*views, path="." if paths is None else paths, renames=False).entries
        # what is already as it should become is not a conflict
        undone = {
            each.path: find(then, each.path)
            for each in changes
            if not is_same(self._find(each.path), find(then, each.path))
        }
        stale = [path for path in undone if not self._can_undo(path, undone, find(later, path))]
        if stale:
            raise StaleRestoreError(stale)
        now = self._clock()
        with self._draft():
            for path, node in sorted(undone.items(), key=lambda each: each[0]):
                present = self._find(path)
                if type(node) is DirectoryNode:
                    node = _directory_like(node, present, self._edition, now)
                if node is not present:  # else it went with the directory above it
                    self._place_node(path, node, now)
            return self._root_node

    def _can_undo(
        self, path: str, undone: Mapping[str, Node | None], expected: Node | None
    ) -> bool:
        """Return whether a path is as expected, and its directory there, or empty to be removed."""
        present, wanted, parent = self._find(path), undone[path], parent_of(path)
        if not is_same(present, expected):
            return False
        if type(present) is DirectoryNode and type(wanted) is not DirectoryNode:
            return all(f"{path}/{name}" in undone for name, _ in present.children.items())
        above = undone[parent] if parent in undone else self._find(parent)
        return wanted is None or type(above) is DirectoryNode

    @contextmanager
    def _draft(self) -> Generator[None, None, None]:
        """Change a copy of the tree in the with block; the present tree stays."""
        here = self._root_node
        self._edition += 1
        try:
            yield
        finally:
            self._root_node = here
            self._edition += 1

    def _restore_path(self, path: str, kept: DirectoryNode) -> None:
        if not path:
            self._root_node = kept
            return
        node, now = find(kept, path), self._clock()
        for parent in parents_of(path) if node is not None else ():
            if self._find(parent) is None:
                like = find(kept, parent)
                self._place_node(parent, _directory_like(like, None, self._edition, now), now)
        self._place_node(path, node, now)

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Iterable[str] | None:
        del name  # for error messages of other backends
        root = build_tree(State(state), self._edition, self._clock())
        self._quota.check(root.size, root.count - 1)
        before, self._root_node = self._root_node, root
        return changed_files(before, root) if self._listeners else []

    def _snapshot_root(self, snapshot: FilesystemSnapshot) -> DirectoryNode:
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
        """Set the node at `path`, or remove it if `node` is None; the parent exists."""
        with self._lock.mutex:
            chain, name = self._writable_chain(path)
            set_node(chain, name, node, now)

    def _writable_chain(self, path: str) -> tuple[list[DirectoryNode], str]:
        """Return the directories above `path`, copied into the current edition, and its name."""
        *parents, name = path.split("/")
        directory = self._root_node = self._make_writable(self._root_node)
        chain = [directory]
        for segment in parents:
            below = directory.children.get(segment)
            deeper = self._make_writable(below)
            if deeper is not below:
                directory.children[segment] = deeper
            directory = deeper
            chain.append(directory)
        return chain, name

    def _make_writable(self, node: Node | None) -> DirectoryNode:
        if type(node) is not DirectoryNode:
            raise TypeError("A parent is not a directory")
        return node if node.edition == self._edition else node.copy(self._edition)

    def _stable_view(self) -> SearchableFilesystem:
        """Return the present state as a filesystem that does not change."""
        with self._lock.mutex:
            self._edition += 1
            return self._view_of(self._root_node)

    def _savepoint_storage(self) -> SavepointStorage:
        return TreeStack(
            self._savepoints, self._freeze, self._return_to, lambda: id(self._root_node)
        )

    def _freeze(self) -> DirectoryNode:
        """Return the tree; later changes are made in a copy."""
        self._edition += 1
        return self._root_node

    def _return_to(self, tree: DirectoryNode, mark: int) -> None:
        del mark  # it is the identity of the tree
        self._root_node = tree

    def _view_of(self, root: DirectoryNode) -> "InMemoryFilesystem":
        view = InMemoryFilesystem(limits=self._limits, read_only=True)
        view._root_node = root
        return view


def _directory_like(
    like: Node | None, present: Node | None, edition: int, now: int
) -> DirectoryNode:
    """Return the directory that is present, or an empty one, with the permissions of another."""
    is_there = type(present) is DirectoryNode
    directory = (
        present.copy(edition) if is_there else DirectoryNode(CopyOnWriteDict(), edition, now)
    )
    directory.permissions = like.permissions if type(like) is DirectoryNode else 0o755
    return directory
