"""Filesystem views of a review: the filter of withheld changes, and layers of states.

A copy may contain what must not reach the original unseen: hooks and configuration that git
runs, and setuid and setgid bits. Special files such as pipes cannot be copied. The filter
withholds all of these. Output that tools keep is neither offered nor withheld: it is no change
of the project.
"""

import errno
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from weakincentives.filesystem import (
    BytesContent,
    Change,
    Children,
    Content,
    FileStat,
    ReadableFilesystem,
    is_cache,
)
from weakincentives.filesystem.base import Primitives, is_tool_output, open_state
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.posix import join, os_error, parents_of

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

    def offer(self, before: ReadableFilesystem, after: ReadableFilesystem) -> "Sides":
        """Return two states of the copy with only what is offered.

        A cache that was removed is, but not one that a command has made or changed.
        """
        now = Side(after)

        def hides(path: str) -> bool:
            return self.hides(path) or (is_cache(path) and now.lookup(path) is not None)

        return (
            LayeredFilesystem(before, hides=hides),
            LayeredFilesystem(after, hides=hides, transform=self.strip_rights),
        )

    def offers(self, change: Change) -> bool:
        """Return whether a change is offered."""
        is_removal = change.after is None
        return not self.hides(change.path) and (is_removal or not is_cache(change.path))

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

    def _withheld_part(self, change: Change) -> Change | None:
        if self.hides(change.path) or any(side.kind == "special" for side in change.sides):
            return change
        after = change.after
        plain = None if after is None else self.strip_rights(after)
        if after == plain:
            return None
        return Change(change.path, "mode-changed", plain, after)


@dataclass(frozen=True, slots=True)
class Version:
    """The content and permissions of a file on one side."""

    content: bytes
    permissions: int

    def lookup(self, path: str) -> FileStat:
        """Return its metadata."""
        size = len(self.content)
        return FileStat(
            path, is_file=True, is_directory=False, size_bytes=size, permissions=self.permissions
        )

    def open(self, path: str) -> Content:
        """Open it."""
        del path  # as a side of a comparison does
        return BytesContent(self.content)

    def known_id(self, found: FileStat) -> str | None:
        """Return None: its id is not known."""
        del found


class LayeredFilesystem(ReadableFilesystem):
    """A filesystem with some entries as they are elsewhere, or removed as they are there.

    With `hides` it also leaves out hidden paths, pipes, sockets and devices.
    """

    def __init__(
        self,
        base: ReadableFilesystem,
        layers: Mapping[str, Side | Version] = MappingProxyType({}),
        *,
        hides: Callable[[str], bool] | None = None,
        transform: Callable[[FileStat], FileStat] | None = None,
    ) -> None:
        """Show `base`, with the paths in `layers` as they are there, and the others transformed."""
        super().__init__(limits=base.limits)
        self._root = base.root
        self._base = Side(base)
        self._layers = layers
        self._hides = hides
        self._transform = transform
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
        layer = self._layers.get(path)
        if layer is not None:
            return layer.lookup(path)
        if self._hides is not None and self._hides(path):
            return None
        return self._show(self._base.lookup(path))

    def _show(self, found: FileStat | None) -> FileStat | None:
        if found is None or (self._hides is not None and found.kind == "special"):
            return None
        return found if self._transform is None else self._transform(found)

    def _stats(self, path: str) -> dict[str, FileStat]:
        if path in self._above:
            found = self._lookup(path)
            if found is None or not found.is_directory:
                raise os_error(errno.ENOTDIR, path)
        entries: dict[str, FileStat | None] = {
            name: self._show(each)
            for name, each in self._base.children(path).items()
            if self._hides is None or not self._hides(join(path, name))
        }
        entries |= {name: self._lookup(join(path, name)) for name in self._names.get(path, ())}
        return {name: each for name, each in entries.items() if each is not None}

    def _children(self, path: str) -> Children:
        return Children.of(self._stats(path))

    def _has_same_tree(self, path: str, other: Primitives) -> bool:
        if path in self._above:
            return False
        if isinstance(other, LayeredFilesystem) and path not in other._above:  # noqa: SLF001
            # the entries of the same tree are transformed to the same
            is_same_filter = self._hides == other._hides  # noqa: SLF001  of this class
            return is_same_filter and self._base.has_same_tree(path, other._base)  # noqa: SLF001
        # without an entry of another state below it, a directory is as in the base
        return (
            self._hides is None
            and self._transform is None
            and (state := open_state(other)) is not None
            and self._base.has_same_tree(path, state)
        )

    def _open(self, path: str) -> Content:
        return self._layers.get(path, self._base).open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._layers.get(path, self._base).known_id(found)


Sides: TypeAlias = tuple[LayeredFilesystem, LayeredFilesystem]
"""Two states that are compared."""
