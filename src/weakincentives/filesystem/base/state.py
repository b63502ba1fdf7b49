"""Uniform read access to a filesystem state (live, snapshot, archive), and snapshot retention.

Code that compares, copies or stores whole states uses this instead of the public methods,
which paginate and apply limits.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from threading import Lock
from uuid import UUID

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.base.readable import ReadableFilesystem
from weakincentives.filesystem.text import Content, load
from weakincentives.filesystem.types import Children, FileStat, FilesystemSnapshot
from weakincentives.posix import check_time, display_path, parents_of, shorten_path


class State:
    """The state of a filesystem, read through its primitives; in memory a frozen copy."""

    def __init__(self, filesystem: ReadableFilesystem) -> None:
        """Read from `filesystem`."""
        self._filesystem = filesystem._stable_view()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def lookup(self, path: str) -> FileStat | None:
        """Return the stat of `path`, or None if nothing is there."""
        return self._filesystem._lookup(path)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def children(self, path: str) -> dict[str, FileStat]:
        """Return the stats of a directory's entries, by name."""
        try:
            return self._filesystem._stats(path)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives
        except (FileNotFoundError, NotADirectoryError):
            return {}  # removed since it was listed

    def names(self, path: str) -> Children:
        """Return the names of a directory's entries, by kind.

        Raises:
            OSError: It is not a directory.
        """
        return self._filesystem._children(path)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def has_same_tree(self, path: str, other: "State") -> bool:
        """Return whether a directory is known to be the same in `other`, with all below it."""
        return self._filesystem._has_same_tree(path, other._filesystem)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def tree_id(self) -> str | None:
        """Return an id of all names, contents and permissions, if it is known without a walk.

        Two states with the same id are equal.
        """
        return self._filesystem._tree_id()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def directories(self, operation: str) -> Iterator[tuple[str, dict[str, FileStat]]]:
        """Yield every directory with its entries, parents first."""
        pending = [""]
        while pending:
            check_time(operation)
            path = pending.pop()
            children = self.children(path)
            yield path, children
            pending += [each.path for each in children.values() if each.is_directory]

    def known_id(self, found: FileStat) -> str | None:
        """Return the git blob id of a file if it is known without reading."""
        return self._filesystem._blob_id(found.path)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def known_ids(self, paths: Iterable[str]) -> Iterator[str | None]:
        """Yield the git blob id of each file, or None if it is not known without reading."""
        return map(self._filesystem._blob_id, paths)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def read(self, found: FileStat) -> bytes:
        """Return all bytes of a file.

        Raises:
            LimitExceededError: They do not fit into memory; nothing was read.
            OSError: It is not a file.
        """
        with self.open(found.path) as content:
            return self.load(content, found.path)

    def load(self, content: Content, path: str) -> bytes:
        """Return all bytes of open content; raises as `read` does."""
        return load(content, path, self._filesystem.limits)

    def contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        """Yield each of the sorted `paths` that can be opened, with its content."""
        return self._filesystem._contents(paths)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def open(self, path: str) -> Content:
        """Open a file.

        Raises:
            OSError: It is not a file.
        """
        return self._filesystem._open(path)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # a state is its primitives


def open_state(filesystem: object) -> State | None:
    """Return the state of a filesystem; None if it has only the methods of the protocol."""
    return State(filesystem) if isinstance(filesystem, ReadableFilesystem) else None


def check_restorable(here: State, then: State, paths: Sequence[str]) -> None:
    """Check that `paths` of the state `here` can be restored to the state `then`.

    Raises:
        SnapshotRestoreError: A path is in neither state, or a parent of it is a file now.
    """
    for path in paths:
        if then.lookup(path) is not None:
            _ensure_directories_above(here, path)
        elif here.lookup(path) is None:
            raise SnapshotRestoreError(
                f"Failed to restore {display_path(path)!r}:"
                " it is neither in the snapshot nor in the workspace"
            )


def _ensure_directories_above(here: State, path: str) -> None:
    for parent in parents_of(path):
        found = here.lookup(parent)
        if found is None:
            return
        if not found.is_directory:
            raise SnapshotRestoreError(
                f"Failed to restore {display_path(path)!r}: {display_path(parent)!r} is"
                " not a directory any more;"
                f" restore {display_path(parent)!r} instead"
            )


class Pins:
    """Reference counts of snapshots that open transactions need; thread-safe."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> Callable[[], None]:
        """Pin a snapshot by its id or commit; return an idempotent function to unpin it."""
        with self._lock:
            self._counts[name] += 1
        pinned = [name]

        def unpin() -> None:
            with self._lock:
                if pinned:
                    self._counts.subtract(pinned)
                    self._counts += Counter()  # drops zero counts
                    pinned.clear()

        return unpin

    def __contains__(self, name: object) -> bool:
        """Whether a snapshot is pinned."""
        return name in self._counts

    def names(self) -> set[str]:
        """Return everything that is pinned."""
        with self._lock:
            return set(self._counts)


def select_old(
    snapshots: Sequence[FilesystemSnapshot], *, keep: int | None, before: datetime | None
) -> Sequence[FilesystemSnapshot]:
    """Return the snapshots that `prune` forgets, of `snapshots` ordered oldest first.

    Raises:
        ValueError: Neither was given, `keep` is negative, or `before` has no time zone.
    """
    if keep is None and before is None:
        raise ValueError("prune needs keep= or before=; nothing was forgotten")
    if keep is not None and keep < 0:
        raise ValueError(f"keep must not be negative: {keep}")
    if before is not None and before.tzinfo is None:
        raise ValueError(f"before must have a time zone: {before!r}")
    old = snapshots[: max(0, len(snapshots) - (keep or 0))]
    return [each for each in old if before is None or each.created_at < before]


def snapshot_id_of(snapshot: FilesystemSnapshot | UUID | str) -> str:
    """Return the id of a snapshot as text; `snapshot` may be the id itself."""
    return str(snapshot.snapshot_id if isinstance(snapshot, FilesystemSnapshot) else snapshot)


def check_snapshot(snapshot: object) -> None:
    """Check that `snapshot` is a snapshot value, and not an id or a tag.

    Raises:
        SnapshotRestoreError: It is not.
    """
    if not isinstance(snapshot, FilesystemSnapshot):
        given = shorten_path(repr(snapshot))
        raise SnapshotRestoreError(f"Not a snapshot; pass what snapshot() returned: {given}")
