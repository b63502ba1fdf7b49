"""Changes of several files, all or none, on any filesystem.

Where the filesystem has savepoints one is kept. Elsewhere what was there is remembered,
and put back by the methods of the protocol.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import MAX_WRITE_LENGTH, BaseFilesystem, Filesystem, Savepoint
from weakincentives.filesystem.paths import parents_of, shown


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
        if isinstance(self._fs, BaseFilesystem):
            self._fs.replace_content(path, data)
        else:
            _write_whole(self._fs, path, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._fs.delete(path)

    def move(self, source: str, destination: str) -> None:
        """Give a file or directory another path, where nothing is."""
        if isinstance(self._fs, BaseFilesystem):
            self._fs.move(source, destination)
        elif self._fs.stat(source).is_directory:
            raise ToolValidationError(
                f"Directories cannot be moved in this workspace: {shown(source)!r};"
                " move the files in it one by one"
            )
        else:
            data = self._fs.read_bytes(source).content
            self._fs.write_bytes(destination, b"", mode="create")
            _write_whole(self._fs, destination, data)
            self._fs.delete(source)


class _RememberedChanges(Changes):
    """Changes, and how each is taken back."""

    def __init__(
        self, filesystem: Filesystem, undo: Callable[[Callable[[], None]], object]
    ) -> None:
        super().__init__(filesystem)
        self._undo = undo

    def create(self, path: str, text: str) -> None:
        self._remember_new(path)
        super().create(path, text)

    def replace(self, path: str, data: bytes) -> None:
        self._remember(path)
        super().replace(path, data)

    def delete(self, path: str) -> None:
        self._remember(path)
        super().delete(path)

    def move(self, source: str, destination: str) -> None:
        self._remember_new(destination)

        def move_back() -> None:
            if not self._fs.exists(source):
                super(_RememberedChanges, self).move(destination, source)

        self._undo(move_back)
        super().move(source, destination)

    def _remember(self, path: str) -> None:
        data = self._fs.read_bytes(path).content

        def put_back() -> None:
            if not self._fs.exists(path) or self._fs.read_bytes(path).content != data:
                _write_whole(self._fs, path, data)

        self._undo(put_back)

    def _remember_new(self, path: str) -> None:
        if self._fs.exists(path):
            return  # it is refused
        first = next(
            (each for each in (*parents_of(path), path) if not self._fs.exists(each)), path
        )

        def take_away() -> None:
            if self._fs.exists(first):
                self._fs.delete(first, recursive=True)

        self._undo(take_away)


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Make changes of which none is left if an exception leaves the block.

    While it lasts, other threads wait before they change anything, if the filesystem
    has savepoints.
    """
    savepoint = _savepoint(filesystem)
    if savepoint is not None:
        with savepoint:
            yield Changes(filesystem)
        return
    with ExitStack() as undo:
        yield _RememberedChanges(filesystem, undo.callback)
        undo.pop_all()


def _savepoint(filesystem: Filesystem) -> Savepoint | None:
    if not isinstance(filesystem, BaseFilesystem):
        return None
    try:
        return filesystem.savepoint()
    except NotImplementedError:
        return None


def _write_whole(filesystem: Filesystem, path: str, data: bytes) -> None:
    """Write a file in parts, if all at once is refused for its length."""
    if len(data) > MAX_WRITE_LENGTH:
        try:
            filesystem.write_bytes(path, data)
        except ValueError:
            filesystem.write_bytes(path, data[:MAX_WRITE_LENGTH])
            for start in range(MAX_WRITE_LENGTH, len(data), MAX_WRITE_LENGTH):
                filesystem.write_bytes(path, data[start : start + MAX_WRITE_LENGTH], mode="append")
    else:
        filesystem.write_bytes(path, data)
