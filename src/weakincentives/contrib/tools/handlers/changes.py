"""Atomic changes on any filesystem: one change under the write lock, or several, all or none.

Several changes are rolled back by a savepoint if the filesystem has savepoints, and
otherwise by before-images that are recorded here.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, Movable, Rewritable, StaleContentError
from weakincentives.filesystem.base import hold_lock
from weakincentives.posix import display_path
from weakincentives.runtime import before_images
from weakincentives.runtime.before_images import (
    RecordingFilesystem,
    capture_image,
    write_entire_file,
)

T = TypeVar("T")

_MAX_ATTEMPTS = 3


class Changes:
    """Applies changes one after the other."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Change `filesystem`."""
        self._fs = filesystem
        # a recording proxy records one file for a write, but all files for other changes
        self._direct = None if isinstance(filesystem, RecordingFilesystem) else filesystem

    def create(self, path: str, text: str) -> None:
        """Create a file and its missing parent directories."""
        self._fs.write(path, text, mode="create")

    def replace(self, path: str, data: bytes, expected: bytes) -> None:
        """Replace the bytes of an existing file of any size, if they are the `expected` ones."""
        if isinstance(self._direct, Rewritable):
            self._direct.replace_content(path, data, expected=expected)
        else:
            write_entire_file(self._fs, path, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._fs.delete(path)

    def move(self, source: str, destination: str) -> None:
        """Move a file or directory to a path that does not exist yet."""
        if isinstance(self._direct, Movable):
            self._direct.move(source, destination)
        else:
            self._copy(source, destination)
            self._fs.delete(source, recursive=self._fs.stat(source).is_directory)

    def _copy(self, source: str, destination: str) -> None:
        """Copy a file or directory to another path."""
        image = capture_image(self._fs, source)
        if image.others:
            raise ToolValidationError(
                f"Links cannot be moved in this workspace: {display_path(min(image.others))!r};"
                " move the other entries one by one"
            )
        if f"{destination}/".startswith(f"{source}/") and image.directories:
            raise ValueError(f"Cannot move a directory into itself: {display_path(destination)!r}")
        for path in image.directories:
            self._fs.mkdir(destination + path[len(source) :])
        for path, data in image.files.items():
            target = destination + path[len(source) :]
            self._fs.write_bytes(target, b"", mode="create")
            write_entire_file(self._fs, target, data)


def retry_stale(change: Callable[[], T]) -> T:
    """Make a change; if another program saves a file meanwhile, try it on the new text."""
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(StaleContentError):
            return change()
    return change()


@contextmanager
def single_change(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Read, check and create or replace one file while other threads cannot change anything.

    The write lock makes the read-check-write atomic, and the change itself is one atomic
    operation, so that there is nothing to roll back. A filesystem without such a lock or
    such operations gets the guarantees of `all_or_none`. A move is not atomic on every
    backend, so it needs `all_or_none`.
    """
    release = hold_lock(filesystem) if _is_atomic(filesystem) else None
    if release is not None:
        try:
            yield Changes(filesystem)
        finally:
            release()
    else:
        with all_or_none(filesystem) as changes:
            yield changes


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Make several changes; if an exception leaves the block, all of them are undone.

    Meanwhile other threads cannot change anything, if the filesystem has savepoints.
    """
    with before_images.all_or_none(filesystem) as changed:
        yield Changes(changed)


def _is_atomic(filesystem: object) -> bool:
    return isinstance(filesystem, Rewritable) and not isinstance(filesystem, RecordingFilesystem)
