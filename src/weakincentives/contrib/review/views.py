"""A state as a review sees it: some of it is hidden, and some files are others."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from weakincentives.contrib.review.entries import write_sparse
from weakincentives.filesystem import (
    BytesContent,
    Change,
    Children,
    Content,
    FileStat,
    HostFilesystem,
    ReadableFilesystem,
)
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import HostFile, Identity, is_stable
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.posix import (
    RootedDirectory,
    grant_owner_access,
    join,
    make_accessible,
    parents_of,
    pin,
    set_permissions,
    store_file,
)

GIT = ".git"

_FILE_RIGHTS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_DIRECTORY_RIGHTS = stat.S_ISUID | stat.S_ISGID


class Boundary:
    """What of a copy may reach the original."""

    def __init__(
        self,
        before: Callable[[], Side],
        wanted: MountFilter,
        git_dirs: Sequence[str],
        *,
        with_git: bool,
        with_rights: bool,
    ) -> None:
        """Compare with the state `before`; hide what is not `wanted`, and git's data."""
        self._before = before
        self._wanted = wanted
        self._git_dirs = tuple(each.casefold() for each in git_dirs)
        self._with_git = with_git
        self._with_rights = with_rights

    def hides(self, path: str) -> bool:
        """Return whether nothing at `path` is offered."""
        if not self._with_git and self._is_git(path.casefold()):
            return True
        return bool(self._wanted) and not all(map(self._wanted.wants, (*parents_of(path), path)))

    def offered(self, changes: Sequence[Change]) -> list[Change]:
        """Return what is offered of `changes`."""
        found = (self._part(each) for each in changes if not self.hides(each.path))
        return [each for each in found if each is not None]

    def withheld(self, changes: Sequence[Change]) -> list[Change]:
        """Return what is not offered of `changes`."""
        found = (self._rest(each) for each in changes)
        return [each for each in found if each is not None]

    def without_rights(self, found: FileStat) -> FileStat:
        """Return what is there without rights that it did not have before."""
        if self._with_rights or not found.permissions & _FILE_RIGHTS or found.is_symlink:
            return found
        rights = _DIRECTORY_RIGHTS if found.is_directory else _FILE_RIGHTS
        kept = ~rights | self._rights_before(found)
        return replace(found, permissions=found.permissions & kept)

    def _is_git(self, folded: str) -> bool:
        if GIT in folded and GIT in folded.split("/"):
            return True
        return any(f"{folded}/".startswith(f"{each}/") for each in self._git_dirs)

    def _rights_before(self, found: FileStat) -> int:
        before = self._before().lookup(found.path)
        if before is not None and before.kind == found.kind:
            return before.permissions
        return self._handed_down(found.path) if found.is_directory else 0

    def _handed_down(self, path: str) -> int:
        """Return the set-group-id bit if the kernel gives it to a new directory there."""
        for parent in reversed(list(parents_of(path))):
            above = self._before().lookup(parent)
            if above is not None:
                return above.permissions & stat.S_ISGID if above.is_directory else 0
        return 0

    def _part(self, change: Change) -> Change | None:
        """Return the change without special files and rights, if anything is left of it."""
        before = _unless_special(change.before)
        after = _unless_special(change.after)
        after = None if after is None else self.without_rights(after)
        if (before, after) == (change.before, change.after):
            return change
        if before is None or after is None:
            if before is after:
                return None
            return Change(change.path, "removed" if after is None else "added", before, after)
        if change.kind == "mode-changed" and before.permissions == after.permissions:
            return None
        return replace(change, before=before, after=after)

    def _rest(self, change: Change) -> Change | None:
        if self.hides(change.path) or any(side.kind == "special" for side in change.sides):
            return change
        after = change.after
        plain = None if after is None else self.without_rights(after)
        if after == plain:
            return None
        return Change(change.path, "mode-changed", plain, after)


def _unless_special(found: FileStat | None) -> FileStat | None:
    return None if found is not None and found.kind == "special" else found


@dataclass(frozen=True, slots=True)
class Version:
    """A file as it is on one side."""

    content: bytes
    permissions: int

    def stat(self, path: str) -> FileStat:
        """Return its metadata."""
        size = len(self.content)
        return FileStat(path, True, False, size_bytes=size, permissions=self.permissions)


class FilteredFilesystem(ReadableFilesystem):
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
        self._whole = Side(whole)
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


class ReplacedFilesystem(FilteredFilesystem):
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


_PLAIN_BITS = 0o777
_OPEN = 0o700


class PreservingFilesystem(HostFilesystem):
    """A host directory; names, sizes and permissions of what is put into it are not bound."""

    def put(self, found: FileStat, source: Side) -> None:
        """Make a file, link or directory what `found` is in `source`; its parent is there.

        A directory is open to its owner until `set_permissions` closes it. Blocks of zeros
        in a file become holes.
        """
        with self._lock:
            if found.is_directory:
                self._make_directory(found.path)
                self._set_permissions(found.path, found.permissions | _OPEN)
            elif found.link_target is not None:
                self._make_link(found.path, found.link_target)
            else:
                self._put_file(found, source)

    def set_time(self, path: str, when: datetime) -> None:
        """Set when a file was changed last."""
        with self._lock, self._open_for_change(path, save=False) as (parent, name):
            seconds = when.timestamp()
            os.utime(name, (seconds, seconds), dir_fd=parent, follow_symlinks=False)

    def set_permissions(self, path: str, permissions: int) -> None:
        """Set the permissions of a file or directory."""
        with self._lock:
            self._set_permissions(path, permissions)

    def _put_file(self, found: FileStat, source: Side) -> None:
        plain = found.permissions & _PLAIN_BITS
        with (
            source.open(found.path) as content,
            self._open_for_change(found.path) as (parent, name),
        ):
            store_file(
                parent, name, lambda target: write_sparse(target, content), permissions=plain
            )
        if plain != found.permissions:
            self._set_permissions(found.path, found.permissions)


class OriginalFilesystem(PreservingFilesystem):
    """The original, to look at: nothing is changed by it, and nothing recovered.

    It remembers what each file looked like when it was opened last, so that a file that
    has been compared need not be read again.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open the directory for reading."""
        super().__init__(root, read_only=True)
        self.seen: dict[str, Identity] = {}
        """How a file looked that had been the same for long enough when it was opened."""

    @property
    def directory(self) -> RootedDirectory:
        """The directory itself."""
        return self._directory

    def _open(self, path: str) -> HostFile:
        opened = super()._open(path)
        if is_stable(opened.identity):
            self.seen[path] = opened.identity
        else:
            self.seen.pop(path, None)
        return opened


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
