"""A part of a state: what is hidden is not there."""

from collections.abc import Callable

from weakincentives.filesystem import Children, Content, FileStat, ReadableFilesystem
from weakincentives.filesystem.paths import join
from weakincentives.filesystem.states import State


class PartialFilesystem(ReadableFilesystem):
    """A state without what is hidden, and without pipes, sockets and devices."""

    def __init__(self, whole: ReadableFilesystem, hides: Callable[[str], bool]) -> None:
        """Show of `whole` what is not at or below a path that `hides` is true of."""
        super().__init__(limits=whole.limits)
        self._root = whole.root
        self._whole = State(whole)
        self._hides = hides

    @property
    def root(self) -> str:
        """Where the whole is."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = None if self._hides(path) else self._whole.lookup(path)
        return None if found is not None and found.kind == "special" else found

    def _children(self, path: str) -> Children:
        kinds: dict[str, list[str]] = {"file": [], "directory": [], "symlink": [], "special": []}
        for name, found in self._whole.children(path).items():
            if not self._hides(join(path, name)):
                kinds[found.kind].append(name)
        return Children(kinds["file"], kinds["directory"], kinds["symlink"])

    def _open(self, path: str) -> Content:
        return self._whole.open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._whole.known_id(found)
