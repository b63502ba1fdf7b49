"""A state as a review sees it: some of it is hidden, and some files are others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weakincentives.filesystem import (
    BytesContent,
    Children,
    Content,
    FileStat,
    ReadableFilesystem,
)
from weakincentives.filesystem.paths import join
from weakincentives.filesystem.states import State


@dataclass(frozen=True, slots=True)
class Version:
    """A file as it is on one side."""

    content: bytes
    permissions: int

    def stat(self, path: str) -> FileStat:
        """Return its metadata."""
        size = len(self.content)
        return FileStat(path, True, False, size_bytes=size, permissions=self.permissions)


class PartialFilesystem(ReadableFilesystem):
    """A state without what is hidden, and without pipes, sockets and devices."""

    def __init__(
        self,
        whole: ReadableFilesystem,
        hides: Callable[[str], bool],
        shows: Callable[[FileStat], FileStat] = lambda found: found,
    ) -> None:
        """Show of `whole` what is not at or below a path that `hides` is true of.

        Metadata is what `shows` makes of it.
        """
        super().__init__(limits=whole.limits)
        self._root = whole.root
        self._whole = State(whole)
        self._hides = hides
        self._shows = shows

    @property
    def root(self) -> str:
        """Where the whole is."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = None if self._hides(path) else self._whole.lookup(path)
        return None if found is None or found.kind == "special" else self._shows(found)

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


class ReplacedFilesystem(PartialFilesystem):
    """A state in which some files are others."""

    def __init__(self, whole: ReadableFilesystem, replaced: Mapping[str, Version]) -> None:
        """Show `replaced` where `whole` has other files."""
        super().__init__(whole, lambda path: False)
        self._replaced = replaced

    def _lookup(self, path: str) -> FileStat | None:
        other = self._replaced.get(path)
        return super()._lookup(path) if other is None else other.stat(path)

    def _open(self, path: str) -> Content:
        other = self._replaced.get(path)
        return super()._open(path) if other is None else BytesContent(other.content)

    def _blob_id(self, path: str) -> str | None:
        return None if path in self._replaced else super()._blob_id(path)
