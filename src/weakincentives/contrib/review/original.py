"""The original as it is now, also where it is closed to its owner."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from weakincentives.contrib.review.views import PreservingFilesystem
from weakincentives.filesystem import Content, FileStat
from weakincentives.filesystem.diff import Side
from weakincentives.posix import (
    RootedDirectory,
    grant_owner_access,
    make_accessible,
    parents_of,
    pin,
    set_permissions,
)

_OPEN = 0o700

T = TypeVar("T")


class OriginalSide(Side):
    """The original as one side of a comparison.

    An agent can have taken every permission away from what was applied. Who is about to change
    the original opens it up while it is compared; who only looks changes nothing, and cannot
    see what is closed.
    """

    def __init__(self, original: PreservingFilesystem, *, looking: bool) -> None:
        """Compare with `original`; `looking` leaves closed what is closed."""
        super().__init__(original)
        self.is_looking = looking
        self._root = Path(original.root)
        self._rooted: RootedDirectory | None = None
        self._closed: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close again what was opened up."""
        for path in sorted(self._closed, reverse=True):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._at(path, lambda place, mode=self._closed[path]: set_permissions(*place, mode))
        if self._rooted is not None:
            self._rooted.close()

    def lookup(self, path: str) -> FileStat | None:
        """Return what is at `path`, with the permissions that it has when nobody compares."""
        found = self._seen(path, lambda: super(OriginalSide, self).lookup(path))
        if found is not None and path in self._closed:
            return replace(found, permissions=self._closed[path])
        return found

    def children(self, path: str) -> dict[str, FileStat]:
        """Return what is in a directory, by name."""
        return self._seen(path, lambda: super(OriginalSide, self).children(path))

    def open(self, path: str) -> Content:
        """Open a file; OSError if it is none."""
        try:
            return self._seen(path, lambda: super(OriginalSide, self).open(path))
        except PermissionError:
            found = None if self.is_looking else self.lookup(path)
            if found is None or not found.is_file:
                raise
            return self._at(path, lambda place: self._open_closed(place, path))

    def _open_closed(self, place: tuple[int, str], path: str) -> Content:
        with grant_owner_access(*place):
            return super().open(path)

    def _seen(self, path: str, look: Callable[[], T]) -> T:
        try:
            return look()
        except PermissionError:
            if self.is_looking or not self._open_above(path):
                raise
            return look()

    def _open_above(self, path: str) -> bool:
        """Open up directories of ours on the way to `path`; return whether any was closed."""
        before = len(self._closed)
        for place in (*parents_of(path), path):
            found = super().lookup(place)
            if found is None or not found.is_directory:
                break
            if place not in self._closed and found.permissions & _OPEN != _OPEN:
                self._closed[place] = self._at(place, _open_pinned)
        return len(self._closed) > before

    def _at(self, path: str, do: Callable[[tuple[int, str]], T]) -> T:
        if self._rooted is None:
            self._rooted = RootedDirectory(self._root)
        parent, name = self._rooted.open_parent(path)
        try:
            return do((parent, name))
        finally:
            os.close(parent)


def _open_pinned(place: tuple[int, str]) -> int:
    with pin(*place) as descriptor:
        return make_accessible(descriptor)
