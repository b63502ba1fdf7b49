"""What was changed in a copy, held against what the original is now.

States are compared by content and never by time. A change can be made if the original
still has there what the copy began with, and need not be if it has the new already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from weakincentives.errors import WinkError
from weakincentives.filesystem import Change, FileStat
from weakincentives.filesystem.diffs.changes import same_bytes
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import join, outermost, parents_of, shown
from weakincentives.filesystem.states import State

_MAX_SHOWN = 10  # conflicts in a message


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that was changed in the copy, and in the original since the copy was made."""

    path: str
    in_copy: str
    """What happened to it in the copy."""
    in_original: str
    """What happened to it, or to what is above or below it, in the original."""

    def __str__(self) -> str:
        """Return the path and both sides."""
        return f"{shown(self.path)}: {self.in_copy} in the copy, {self.in_original} in the original"


class ConflictError(WinkError, RuntimeError):
    """Paths were changed on both sides; nothing was applied."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        """Hold the conflicts."""
        self.conflicts = tuple(conflicts)
        lines = [str(each) for each in self.conflicts[:_MAX_SHOWN]]
        more = len(self.conflicts) - len(lines)
        tail = f"; and {more} more" if more else ""
        super().__init__(f"Nothing was applied, changed on both sides: {'; '.join(lines)}{tail}")


@dataclass(frozen=True, slots=True)
class Step:
    """One path of the original that becomes something else, or goes."""

    path: str
    now: FileStat | None
    wanted: FileStat | None
    change: Change


class Plan:
    """What has to be done in the original, and what stands against it."""

    def __init__(
        self, changes: Sequence[Change], original: State, before: State, after: State
    ) -> None:
        """Look at the `original` for `changes`, which lead from `before` to `after`."""
        self._original = original
        self._before = before
        self._after = after
        self._made = {each.path for each in changes if is_directory(each.after)}
        self._gone = {each.path for each in changes if each.after is None}
        self.steps: list[Step] = []
        self.conflicts: list[Conflict] = []
        for change in changes:
            check_time("Review")
            self._look_at(change)

    def _look_at(self, change: Change) -> None:
        now = self._original.lookup(change.path)
        found = next(self._obstacles(change, now), None)
        if found is not None:
            self.conflicts.append(found)
        elif not self._is_done(change, now):
            self.steps.append(Step(change.path, now, change.after, change))

    def _is_done(self, change: Change, now: FileStat | None) -> bool:
        """Return whether the original has the new state already."""
        if is_directory(change.after) and is_directory(now) and not is_directory(change.before):
            return True  # made on both sides; whose permissions it has does not matter
        return same(self._original, now, self._after, change.after)

    def _obstacles(self, change: Change, now: FileStat | None) -> Iterator[Conflict]:
        """Yield what stands against a change: at the path itself, above it or below it."""
        if self._is_done(change, now):
            return
        if change.after is not None:
            yield from self._above(change)
        if not same(self._original, now, self._before, change.before):
            yield conflict_of(change, _happened(change.before, now))
        elif is_directory(now) and not is_directory(change.after):
            yield from self._below(change)

    def _above(self, change: Change) -> Iterator[Conflict]:
        for parent in parents_of(change.path):
            found = self._original.lookup(parent)
            if parent not in self._made and not is_directory(found):
                became = "was removed" if found is None else f"became a {found.kind}"
                yield conflict_of(change, f"{shown(parent)} {became}")
                return

    def _below(self, change: Change) -> Iterator[Conflict]:
        """Yield what is in a directory that goes, and nobody knew of."""
        try:
            names = self._original.children(change.path)
        except OSError as error:
            yield conflict_of(change, f"not readable ({error.strerror})")
            return
        for name in sorted(names):
            path = join(change.path, name)
            if path not in self._gone:
                yield conflict_of(change, f"{shown(path)} is there, which the copy never had,")
                return


def selected(changes: Sequence[Change], paths: Sequence[str] | None) -> list[Change]:
    """Return the changes at and below `paths`, and the directories that these need.

    Raises:
        ValueError: Nothing was changed at one of the paths.
    """
    if paths is None:
        return list(changes)
    chosen: dict[str, Change] = {}
    for place in outermost(paths):
        found = {each.path: each for each in changes if _is_within(each.path, place)}
        if not found:
            raise ValueError(f"Nothing was changed at {shown(place) or '.'!r}")
        chosen |= found
    needed = {parent for path, each in chosen.items() if each.after for parent in parents_of(path)}
    return [
        each
        for each in changes
        if each.path in chosen
        or (each.path in needed and is_directory(each.after) and not is_directory(each.before))
    ]


def same(first: State, left: FileStat | None, second: State, right: FileStat | None) -> bool:
    """Return whether two states have the same at a path; a file is read if need be."""
    if left is None or right is None:
        return left is right
    if left.kind != right.kind or left.link_target != right.link_target:
        return False
    if left.is_symlink:
        return True
    if left.permissions != right.permissions or left.size_bytes != right.size_bytes:
        return False
    return not left.is_file or _same_content(first, left, second, right)


def is_directory(found: FileStat | None) -> TypeGuard[FileStat]:
    """Return whether it is there, and a directory."""
    return found is not None and found.is_directory


def conflict_of(change: Change, in_original: str) -> Conflict:
    """Return the conflict between a change in the copy and what happened in the original."""
    return Conflict(change.path, _happened(change.before, change.after), in_original)


def _same_content(first: State, left: FileStat, second: State, right: FileStat) -> bool:
    try:
        with first.open(left.path) as one, second.open(right.path) as other:
            return same_bytes(one, other)
    except (FileNotFoundError, PermissionError):
        return False  # gone, replaced or closed: not what it was


def _is_within(path: str, place: str) -> bool:
    return not place or f"{path}/".startswith(f"{place}/")


def _happened(before: FileStat | None, after: FileStat | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if before.kind != after.kind:
        return f"replaced by a {after.kind}"
    return "modified"
