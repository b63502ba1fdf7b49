"""A state: anything that can be read, looked at through its primitives.

A live filesystem, a snapshot and an archive are all states. What compares, copies or
stores a whole state works on this.
"""

from collections.abc import Iterator, Sequence

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.text import Content, load
from weakincentives.filesystem.types import Children, FileStat
from weakincentives.posix import check_time, display_path, join, parents_of


class State:
    """A filesystem, as it is; one in memory is looked at as it is now."""

    def __init__(self, filesystem: ReadableFilesystem) -> None:
        """Look at `filesystem`."""
        self._filesystem = filesystem._stable_view()  # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def lookup(self, path: str) -> FileStat | None:
        """Return what is at `path`, or None."""
        return self._filesystem._lookup(path)  # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def children(self, path: str) -> dict[str, FileStat]:
        """Return what is in a directory, by name."""
        try:
            children: Children = self._filesystem._children(path)  # pyright: ignore[reportPrivateUsage] # a state is its primitives
        except (FileNotFoundError, NotADirectoryError):
            return {}  # gone since it was listed
        found = ((name, self.lookup(join(path, name))) for group in children for name in group)
        return {name: stat for name, stat in found if stat is not None}

    def directories(self, operation: str) -> Iterator[tuple[str, dict[str, FileStat]]]:
        """Yield every directory with what is in it, each before those below it."""
        pending = [""]
        while pending:
            check_time(operation)
            path = pending.pop()
            children = self.children(path)
            yield path, children
            pending += [each.path for each in children.values() if each.is_directory]

    def known_id(self, found: FileStat) -> str | None:
        """Return git's id of a file if it is known without reading."""
        return self._filesystem._blob_id(found.path)  # pyright: ignore[reportPrivateUsage] # a state is its primitives

    def read(self, found: FileStat) -> bytes:
        """Return all bytes of a file.

        Raises:
            LimitExceededError: They do not fit into memory; nothing was read.
            OSError: It is no file.
        """
        with self.open(found.path) as content:
            return self.load(content, found.path)

    def load(self, content: Content, path: str) -> bytes:
        """Return all bytes of what is open; raises as `read` does."""
        return load(content, path, self._filesystem.limits)

    def open(self, path: str) -> Content:
        """Open a file; OSError if it is none."""
        return self._filesystem._open(path)  # pyright: ignore[reportPrivateUsage] # a state is its primitives


def check_restorable(here: State, then: State, paths: Sequence[str]) -> None:
    """Return if `paths` of the state `here` can become what they were `then`.

    Raises:
        SnapshotRestoreError: A path is in neither, or a file that nobody asked to be
            restored is where a directory above it was.
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
                " no directory any more;"
                f" restore {display_path(parent)!r} instead"
            )
