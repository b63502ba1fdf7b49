"""Changes of several files, all or none, on any filesystem.

Where the filesystem has savepoints one is kept. Elsewhere what was there is remembered,
and put back by the methods of the protocol.
"""

from collections.abc import Generator
from contextlib import contextmanager

from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, Movable, Rewritable
from weakincentives.filesystem.base import open_savepoint
from weakincentives.posix import display_path
from weakincentives.runtime.before_images import (
    RecordingFilesystem,
    UndoLog,
    capture_image,
    write_entire_file,
)


class Changes:
    """Changes that are made one after the other."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Change `filesystem`."""
        self._fs = filesystem

    def create(self, path: str, text: str) -> None:
        """Make a file where nothing is, and the directories on the way to it."""
        self._fs.write(path, text, mode="create")

    def replace(self, path: str, data: bytes) -> None:
        """Put other bytes into a file that exists, however many they are."""
        if isinstance(self._fs, Rewritable):
            self._fs.replace_content(path, data)
        else:
            write_entire_file(self._fs, path, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._fs.delete(path)

    def move(self, source: str, destination: str) -> None:
        """Give a file or directory another path, where nothing is."""
        if isinstance(self._fs, Movable):
            self._fs.move(source, destination)
        else:
            self._copy(source, destination)
            self._fs.delete(source, recursive=self._fs.stat(source).is_directory)

    def _copy(self, source: str, destination: str) -> None:
        """Make again at another path what is at one."""
        image = capture_image(self._fs, source)
        if image.others:
            raise ToolValidationError(
                f"Links cannot be moved in this workspace: {display_path(min(image.others))!r};"
                " move what is beside it one by one"
            )
        if f"{destination}/".startswith(f"{source}/") and image.directories:
            raise ValueError(f"Cannot put a directory into itself: {display_path(destination)!r}")
        for path in image.directories:
            self._fs.mkdir(destination + path[len(source) :])
        for path, data in image.files.items():
            goal = destination + path[len(source) :]
            self._fs.write_bytes(goal, b"", mode="create")
            write_entire_file(self._fs, goal, data)


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Make changes of which none is left if an exception leaves the block.

    While it lasts, other threads wait before they change anything, if the filesystem
    has savepoints.
    """
    savepoint = open_savepoint(filesystem)
    if savepoint is not None:
        with savepoint:
            yield Changes(filesystem)
        return
    undo_log = UndoLog(filesystem)
    try:
        yield Changes(RecordingFilesystem(undo_log))
    except BaseException:
        undo_log.rollback()
        raise
