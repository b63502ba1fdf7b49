"""Filesystem views of a review: the filter of withheld changes, and the original.

A copy may contain what must not reach the original unseen: hooks and configuration that git
runs, and setuid and setgid bits. Special files such as pipes cannot be copied. The filter
withholds all of these. Output that tools keep is neither offered nor withheld: it is no change
of the project. `OriginalSide` reads the original even where its owner has no access.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from weakincentives.filesystem import (
    BytesContent,
    Change,
    Children,
    Content,
    FileStat,
    FilesystemSnapshot,
    HostFilesystem,
    ReadableFilesystem,
)
from weakincentives.filesystem.base import Primitives, is_tool_output
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import TreeWriter
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.history import write_sparse
from weakincentives.posix import (
    RootedDirectory,
    grant_owner_access,
    join,
    make_accessible,
    os_error,
    parents_of,
    pin,
    set_permissions,
)

GIT = ".git"

_FILE_RIGHTS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_DIRECTORY_RIGHTS = stat.S_ISUID | stat.S_ISGID


class ReviewFilter:
    """Decides which changes of a copy are offered, and which are withheld."""

    def __init__(
        self,
        before: Callable[[], Side],
        wanted: MountFilter,
        git_dirs: Sequence[str],
        *,
        with_git: bool,
        with_rights: bool,
    ) -> None:
        """Withhold git's data, paths that are not `wanted`, and bits not set in `before`."""
        self._before = before
        self._wanted = wanted
        self._git_dirs = tuple(each.casefold() for each in git_dirs)
        self._with_git = with_git
        self._with_rights = with_rights

    def hides(self, path: str) -> bool:
        """Return whether nothing at `path` is offered."""
        if is_tool_output(path):
            return True
        if not self._with_git and self._is_git(path.casefold()):
            return True
        return bool(self._wanted) and not all(map(self._wanted.wants, (*parents_of(path), path)))

    def offer(self, changes: Sequence[Change]) -> list[Change]:
        """Return the offered part of `changes`."""
        found = (self._offered_part(each) for each in changes if not self.hides(each.path))
        return [each for each in found if each is not None]

    def withhold(self, changes: Sequence[Change]) -> list[Change]:
        """Return the withheld part of `changes`."""
        found = (self._withheld_part(each) for each in changes if not is_tool_output(each.path))
        return [each for each in found if each is not None]

    def strip_rights(self, found: FileStat) -> FileStat:
        """Return the entry without setuid, setgid and sticky bits that it did not have before."""
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
        return self._inherited_rights(found.path) if found.is_directory else 0

    def _inherited_rights(self, path: str) -> int:
        """Return the setgid bit if a new directory there inherits it from its parent."""
        for parent in reversed(list(parents_of(path))):
            above = self._before().lookup(parent)
            if above is not None:
                return above.permissions & stat.S_ISGID if above.is_directory else 0
        return 0

    def _offered_part(self, change: Change) -> Change | None:
        """Return a change without special files and withheld bits; None if nothing is left."""
        before = _drop_special(change.before)
        after = _drop_special(change.after)
        after = None if after is None else self.strip_rights(after)
        if (before, after) == (change.before, change.after):
            return change
        if before is None or after is None:
            if before is after:
                return None
            return Change(change.path, "removed" if after is None else "added", before, after)
        if change.kind == "mode-changed" and before.permissions == after.permissions:
            return None
        return replace(change, before=before, after=after)

    def _withheld_part(self, change: Change) -> Change | None:
        if self.hides(change.path) or any(side.kind == "special" for side in change.sides):
            return change
        after = change.after
        plain = None if after is None else self.strip_rights(after)
        if after == plain:
            return None
        return Change(change.path, "mode-changed", plain, after)


def _drop_special(found: FileStat | None) -> FileStat | None:
    return None if found is not None and found.kind == "special" else found


@dataclass(frozen=True, slots=True)
class Version:
    """The content and permissions of a file on one side."""

    content: bytes
    permissions: int

    def stat(self, path: str) -> FileStat:
        """Return its metadata."""
        size = len(self.content)
        return FileStat(
            path, is_file=True, is_directory=False, size_bytes=size, permissions=self.permissions
        )


class FilteredFilesystem(ReadableFilesystem):
    """A filesystem without hidden paths, pipes, sockets and devices."""

    def __init__(
        self,
        base: ReadableFilesystem,
        hides: Callable[[str], bool],
        transform: Callable[[FileStat], FileStat] = lambda found: found,
    ) -> None:
        """Show `base` without the paths that `hides`; `transform` adapts the metadata."""
        super().__init__(limits=base.limits)
        self._root = base.root
        self._base = Side(base)
        self._hides = hides
        self._transform = transform

    @property
    def root(self) -> str:
        """The root of the underlying filesystem."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = None if self._hides(path) else self._base.lookup(path)
        return None if found is None or found.kind == "special" else self._transform(found)

    def _children(self, path: str) -> Children:
        kinds: dict[str, list[str]] = {"file": [], "directory": [], "symlink": [], "special": []}
        for name, found in self._base.children(path).items():
            if not self._hides(join(path, name)):
                kinds[found.kind].append(name)
        return Children(kinds["file"], kinds["directory"], kinds["symlink"])

    def _has_same_tree(self, path: str, other: Primitives) -> bool:
        # the entries of the same tree are transformed to the same
        return (
            isinstance(other, FilteredFilesystem)
            and self._hides == other._hides  # noqa: SLF001  of this class
            and self._base.has_same_tree(path, other._base)  # noqa: SLF001  as above
        )

    def _open(self, path: str) -> Content:
        return self._base.open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._base.known_id(found)


class ReplacedFilesystem(FilteredFilesystem):
    """A filesystem with some files replaced."""

    def __init__(self, base: ReadableFilesystem, replaced: Mapping[str, Version]) -> None:
        """Show `base` with the files in `replaced`."""
        super().__init__(base, lambda _: False)
        self._replaced = replaced

    def _lookup(self, path: str) -> FileStat | None:
        other = self._replaced.get(path)
        return super()._lookup(path) if other is None else other.stat(path)

    def _open(self, path: str) -> Content:
        other = self._replaced.get(path)
        return super()._open(path) if other is None else BytesContent(other.content)

    def _has_same_tree(self, path: str, other: Primitives) -> bool:
        del path, other
        return False

    def _blob_id(self, path: str) -> str | None:
        return None if path in self._replaced else super()._blob_id(path)


class LayeredFilesystem(ReadableFilesystem):
    """A filesystem with some entries taken from other states, or removed as they are there."""

    def __init__(self, base: ReadableFilesystem, layers: Mapping[str, Side]) -> None:
        """Show `base`, with each path in `layers` as it is in its state."""
        super().__init__(limits=base.limits)
        self._root = base.root
        self._base = Side(base)
        self._layers = layers
        self._names: dict[str, set[str]] = {}
        for path in layers:
            directory, _, name = path.rpartition("/")
            self._names.setdefault(directory, set()).add(name)
        self._above = {above for path in layers for above in ("", *parents_of(path))}

    @property
    def root(self) -> str:
        """The root of the underlying filesystem."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        return self._state(path).lookup(path)

    def _stats(self, path: str) -> dict[str, FileStat]:
        found = self._lookup(path)
        if found is None or not found.is_directory:
            raise os_error(errno.ENOTDIR, path)
        entries = {**self._base.children(path)}
        for name in self._names.get(path, ()):
            entry = self._lookup(join(path, name))
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        return entries

    def _children(self, path: str) -> Children:
        kinds: dict[str, list[str]] = {"file": [], "directory": [], "symlink": [], "special": []}
        for name, entry in sorted(self._stats(path).items()):
            kinds[entry.kind].append(name)
        return Children(*kinds.values())

    def _has_same_tree(self, path: str, other: Primitives) -> bool:
        # without an entry of another state below it, a directory is as in the base
        return (
            path not in self._above
            and isinstance(other, ReadableFilesystem)
            and self._base.has_same_tree(path, Side(other))
        )

    def _open(self, path: str) -> Content:
        return self._state(path).open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._state(path).known_id(found)

    def _state(self, path: str) -> Side:
        return self._layers.get(path, self._base)


_PERMISSION_BITS = 0o777
_OWNER_ACCESS = 0o700


class PreservingFilesystem(HostFilesystem):
    """A host directory to which entries can be copied unchanged, without limits."""

    def fill(self, fill: Callable[[TreeWriter], None], *, tag: str) -> FilesystemSnapshot:
        """Let `fill` write to the empty directory, and return a snapshot of what it wrote."""
        with self._lock.mutex:
            self._lock.await_turn()
            return self._snapshots.fill(fill, tag)

    def put(self, found: FileStat, source: Side) -> None:
        """Copy the entry `found` from `source`; its parent must exist.

        A directory stays accessible to its owner until `set_permissions`. Blocks of zeros
        in a file become holes.
        """
        with self._lock.mutex:
            self._lock.await_turn()
            if found.is_directory:
                self._make_directory(found.path)
                plain = found.permissions & _PERMISSION_BITS
                self._set_permissions(found.path, plain | _OWNER_ACCESS)
            elif found.link_target is not None:
                self._make_link(found.path, found.link_target)
            else:
                self._put_file(found, source)

    def set_time(self, path: str, when: datetime) -> None:
        """Set the modification time of a file."""
        seconds = when.timestamp()
        with self._lock.mutex:
            self._lock.await_turn()
            with self._open_for_change(path) as (parent, name):
                os.utime(name, (seconds, seconds), dir_fd=parent, follow_symlinks=False)

    def set_permissions(self, path: str, permissions: int) -> None:
        """Set the permissions of a file or directory, without set-user-ID and the like.

        The state that is copied may come from somebody else.
        """
        with self._lock.mutex:
            self._lock.await_turn()
            self._set_permissions(path, permissions & _PERMISSION_BITS)

    def _put_file(self, found: FileStat, source: Side) -> None:
        plain = found.permissions & _PERMISSION_BITS
        with (
            source.open(found.path) as content,
            self._open_for_change(found.path) as place,
        ):
            self._journal.store(
                found.path, place, lambda target: write_sparse(target, content), permissions=plain
            )


class OriginalFilesystem(PreservingFilesystem):
    """The original, read-only and without crash recovery."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open the directory for reading."""
        super().__init__(root, read_only=True)

    @property
    def directory(self) -> RootedDirectory:
        """The open directory."""
        return self._directory


T = TypeVar("T")


class OriginalSide(Side):
    """The original as one side of a comparison.

    Applied changes may have removed all permissions of a path. Before an apply or undo, such
    paths are made accessible during the comparison; with `read_only` they are not, and cannot
    be compared.
    """

    def __init__(self, original: PreservingFilesystem, *, read_only: bool) -> None:
        """Compare with `original`; `read_only` changes no permissions."""
        super().__init__(original)
        self.is_read_only: bool = read_only
        self._root = Path(original.root)
        self._rooted: RootedDirectory | None = None
        self._modes_before: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the permissions."""
        for path in sorted(self._modes_before, reverse=True):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._with_parent(
                    path, lambda place, mode=self._modes_before[path]: set_permissions(*place, mode)
                )
        if self._rooted is not None:
            self._rooted.close()

    def lookup(self, path: str) -> FileStat | None:
        """Return the entry at `path` with its real permissions."""
        found = self._retry_accessible(path, lambda: super(OriginalSide, self).lookup(path))
        if found is not None and path in self._modes_before:
            return replace(found, permissions=self._modes_before[path])
        return found

    def children(self, path: str) -> dict[str, FileStat]:
        """Return the entries of a directory by name."""
        stats = self._retry_accessible(path, lambda: super(OriginalSide, self).children(path))
        for name, found in stats.items():
            mode = self._modes_before.get(found.path)
            if mode is not None:
                stats[name] = replace(found, permissions=mode)
        return stats

    def open(self, path: str) -> Content:
        """Open a file; raise OSError if it is not one."""
        try:
            return self._retry_accessible(path, lambda: super(OriginalSide, self).open(path))
        except PermissionError:
            found = None if self.is_read_only else self.lookup(path)
            if found is None or not found.is_file:
                raise
            return self._with_parent(path, lambda place: self._open_unreadable(place, path))

    def _open_unreadable(self, place: tuple[int, str], path: str) -> Content:
        with grant_owner_access(*place):
            return super().open(path)

    def _retry_accessible(self, path: str, look: Callable[[], T]) -> T:
        try:
            return look()
        except PermissionError:
            if self.is_read_only or not self._make_parents_accessible(path):
                raise
            return look()

    def _make_parents_accessible(self, path: str) -> bool:
        """Make the directories above `path` accessible; return whether any was not."""
        before = len(self._modes_before)
        for place in (*parents_of(path), path):
            found = super().lookup(place)
            if found is None or not found.is_directory:
                break
            if (
                place not in self._modes_before
                and found.permissions & _OWNER_ACCESS != _OWNER_ACCESS
            ):
                self._modes_before[place] = self._with_parent(place, _make_pinned_accessible)
        return len(self._modes_before) > before

    def _with_parent(self, path: str, do: Callable[[tuple[int, str]], T]) -> T:
        if self._rooted is None:
            self._rooted = RootedDirectory(self._root)
        parent, name = self._rooted.open_parent(path)
        try:
            return do((parent, name))
        finally:
            os.close(parent)


def _make_pinned_accessible(place: tuple[int, str]) -> int:
    with pin(*place) as descriptor:
        return make_accessible(descriptor)
