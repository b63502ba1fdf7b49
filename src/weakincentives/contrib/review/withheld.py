"""What a review does not offer: git's own data, what was left out, special files, and rights.

A copy may hold what must not reach the original unseen: hooks and configuration that git runs,
and bits that let a file run with the rights of its owner. Pipes and the like cannot be copied.
"""

import os
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from weakincentives.filesystem import Change, FileStat
from weakincentives.filesystem.mounts import MountFilter
from weakincentives.filesystem.state import State
from weakincentives.posix import parents_of

GIT = ".git"

_MAX_STEPS = 1_000
_FILE_RIGHTS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_DIRECTORY_RIGHTS = stat.S_ISUID | stat.S_ISGID


class Boundary:
    """What of a copy may reach the original."""

    def __init__(
        self,
        before: Callable[[], State],
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


def is_git_directory(names: Collection[str]) -> bool:
    """Return whether a directory with these names is what git takes for a repository's data."""
    return "HEAD" in names and ({"objects", "refs"} <= set(names) or "commondir" in names)


def places_on_the_way(root: Path, directory: str, target: str) -> set[str]:
    """Return where a pointer in a `directory` of `root` leads, and the links on the way.

    Only what is below the root counts, in its terms; a pointer may be absolute.
    """
    here, found = Path(os.sep), set[Path]()
    pending = list(reversed((root / directory / target).parts[1:]))
    for _ in range(_MAX_STEPS):
        if not pending:
            found.add(here)
            break
        name = pending.pop()
        here = here.parent if name == ".." else here / name
        if os.path.islink(here):  # noqa: PTH114 # a name that is too long is none
            found.add(here)
            leads = here.readlink()
            pending += [each for each in reversed(leads.parts) if each != os.sep]
            here = Path(os.sep) if leads.is_absolute() else here.parent
    inside = (each.relative_to(root) for each in found if each.is_relative_to(root))
    return {each.as_posix() for each in inside if each.parts}


def _unless_special(found: FileStat | None) -> FileStat | None:
    return None if found is not None and found.kind == "special" else found
