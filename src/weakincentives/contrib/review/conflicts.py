"""What was changed in a copy, held against what the original is now.

States are compared by content and never by time. A change can be made if the original
still has there what the copy began with, and need not be if it has the new already.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from weakincentives.contrib.review.merge import Merge, merge_of
from weakincentives.contrib.review.views import (
    OriginalSide,
    PreservingFilesystem,
    ReplacedFilesystem,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import Change, FileStat, ReadableFilesystem
from weakincentives.filesystem.base import outermost
from weakincentives.filesystem.diff import Side, StaleDiffError, same_bytes
from weakincentives.posix import check_time, display_path, join, parents_of

_MAX_SHOWN = 10  # conflicts in a message


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that was changed in the copy, and in the original since the copy was made."""

    path: str
    in_copy: str
    """What happened to it in the copy."""
    in_original: str
    """What happened to it, or to what is above or below it, in the original."""
    can_merge: bool = False
    """Whether the two changes are in different places of a text, and go together."""

    def __str__(self) -> str:
        """Return the path and both sides."""
        tail = ", in different places" if self.can_merge else ""
        facts = f"{self.in_copy} in the copy, {self.in_original} in the original"
        return f"{display_path(self.path)}: {facts}{tail}"


@dataclass(frozen=True, slots=True)
class Kept:
    """A path that was left as somebody made it, while changes were rolled back."""

    path: str
    fact: str
    """What happened to it."""
    other: str = ""
    """Where the other state of it is kept: what was there before, or was saved before."""

    def __str__(self) -> str:
        """Return a sentence."""
        tail = (
            f", and the other state of it is kept as {display_path(self.other)}"
            if self.other
            else ""
        )
        return f"{display_path(self.path)} {self.fact}{tail}"


class ConflictError(WinkError, RuntimeError):
    """Paths were changed on both sides; nothing was applied."""

    def __init__(self, conflicts: Sequence[Conflict], *, kept: Sequence[Kept] = ()) -> None:
        """Hold the conflicts, and what was kept of what somebody saved meanwhile."""
        self.conflicts: tuple[Conflict, ...] = tuple(conflicts)
        self.kept: tuple[Kept, ...] = tuple(kept)
        super().__init__(self.conflicts, self.kept)

    def __str__(self) -> str:
        """Return all that is to be known, of many conflicts the first."""
        lines = [str(each) for each in self.conflicts[:_MAX_SHOWN]]
        more = len(self.conflicts) - len(lines)
        tail = f"; and {more} more" if more else ""
        fact = f"changed on both sides: {'; '.join(lines)}{tail}"
        if not lines:
            fact = "what an interrupted apply had done was rolled back, but not all of it"
        return "; ".join((f"Nothing was applied, {fact}", *map(str, self.kept)))


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
        self,
        changes: Sequence[Change],
        original: OriginalSide,
        sides: tuple[Side, Side],
        is_reviewed: Callable[[str], bool],
    ) -> None:
        """Look at the `original` for `changes`, which lead from one of the `sides` to the other.

        What is not reviewed stays in the original, and with it the directories above it.
        """
        self._original = original
        self._before, self._after = sides
        self._is_reviewed = is_reviewed
        self._made = {each.path for each in changes if is_directory(each.after)}
        self._gone = {each.path for each in changes if each.after is None}
        self.steps: list[Step] = []
        self.conflicts: list[Conflict] = []
        self.kept_directories: list[str] = []
        for change in reversed(changes):  # what is in a directory comes before it
            check_time("Review")
            try:
                self._look_at(change, self._original.lookup(change.path))
            except PermissionError as error:
                self.conflicts.append(conflict_of(change, f"not readable ({error.strerror})"))
        for found in (self.steps, self.conflicts, self.kept_directories):
            found.reverse()

    def _look_at(self, change: Change, now: FileStat | None) -> None:
        if self._is_done(change, now):
            return
        step = Step(change.path, now, change.after, change)
        found = self._above(change) or self._at(change, now)
        if found is not None:
            self.conflicts.append(found)
        elif is_directory(now) and not is_directory(change.after):
            self._leave(step)
        else:
            self.steps.append(step)

    def _is_done(self, change: Change, now: FileStat | None) -> bool:
        """Return whether the original has the new state already."""
        if is_directory(change.after) and is_directory(now) and not is_directory(change.before):
            return True  # made on both sides; whose permissions it has does not matter
        return same_state(self._original, now, self._after, change.after)

    def _at(self, change: Change, now: FileStat | None) -> Conflict | None:
        if same_state(self._original, now, self._before, change.before):
            return None
        return conflict_of(change, _happened(change.before, now))

    def _above(self, change: Change) -> Conflict | None:
        for parent in parents_of(change.path) if change.after is not None else ():
            found = self._original.lookup(parent)
            if parent not in self._made and not is_directory(found):
                became = "was removed" if found is None else f"became a {found.kind}"
                return conflict_of(change, f"{display_path(parent)} {became}")
        return None

    def _leave(self, step: Step) -> None:
        """Let a directory go, unless something is in it that the copy never had."""
        left = [join(step.path, name) for name in self._original.children(step.path)]
        left = sorted(
            path for path in left if path not in self._gone or path in self.kept_directories
        )
        ours = [
            path for path in left if path not in self.kept_directories and self._is_reviewed(path)
        ]
        if ours or (left and step.wanted is not None):
            fact = f"{display_path((ours or left)[0])} is there, which the copy never had,"
            self.conflicts.append(conflict_of(step.change, fact))
        elif left:
            self.kept_directories.append(step.path)
        else:
            self.steps.append(step)


class Renames:
    """Files that have moved, each from an old name to a new one: a rename is one change."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Hold old and new names; those that share a name belong together."""
        self._targets: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._groups: dict[str, set[str]] = {}
        for old, new in pairs:
            self._targets.setdefault(old, new)
            self._sources.setdefault(new, old)
            group = self._groups.get(old, {old}) | self._groups.get(new, {new})
            self._groups |= dict.fromkeys(group, group)

    def names(self, path: str) -> set[str]:
        """Return the names that go with `path`, itself too; none if it has not moved."""
        return self._groups.get(path, set())

    def source(self, path: str) -> str:
        """Return the old name of what is at `path` now; nothing if it has not moved."""
        return self._sources.get(path, "")

    def below(self, path: str) -> list[str]:
        """Return the new names below a directory, sorted."""
        return sorted(each for each in self._sources if each.startswith(f"{path}/"))

    def fact(self, path: str) -> str:
        """Return what happened to one of the names."""
        if path in self._targets:
            return f"renamed to {display_path(self._targets[path])}"
        return f"renamed from {display_path(self._sources[path])}"


def select_changes(
    changes: Sequence[Change],
    paths: Sequence[str] | None,
    renames: Callable[[], Renames] = lambda: Renames(()),
) -> list[Change]:
    """Return the changes at and below `paths`, and the directories that these need.

    Who chooses one name of a rename chooses all that go with it.

    Raises:
        ValueError: Nothing was changed at one of the paths.
    """
    if paths is None:
        return list(changes)
    chosen: dict[str, Change] = {}
    by_path = {each.path: each for each in changes}
    ordered = sorted(by_path)
    pending = list(outermost(paths))
    while pending:
        place = pending.pop()
        found = {path: by_path[path] for path in _within(ordered, place)}
        if not found:
            raise ValueError(f"Nothing was changed at {display_path(place) or '.'!r}")
        new = found.keys() - chosen.keys()
        chosen |= found
        pending += {name for path in new for name in renames().names(path)} - chosen.keys()
    needed = {parent for path, each in chosen.items() if each.after for parent in parents_of(path)}
    return [
        each
        for each in changes
        if each.path in chosen
        or (each.path in needed and is_directory(each.after) and not is_directory(each.before))
    ]


def with_other_names(conflicts: Sequence[Conflict], renames: Renames) -> Iterator[Conflict]:
    """Yield conflicts, and with each that stands against a rename one for each of its names."""
    known = {each.path for each in conflicts}
    for each in conflicts:
        names = renames.names(each.path)
        yield replace(each, in_copy=renames.fact(each.path)) if names else each
        moved = {name for path in renames.below(each.path) for name in renames.names(path)}
        for other in sorted((names | moved) - known):
            known.add(other)
            fact = f"{display_path(each.path)} {each.in_original}"
            yield Conflict(other, renames.fact(other), fact)


def same_state(first: Side, left: FileStat | None, second: Side, right: FileStat | None) -> bool:
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


def _same_content(first: Side, left: FileStat, second: Side, right: FileStat) -> bool:
    try:
        with first.open(left.path) as one, second.open(right.path) as other:
            return same_bytes(one, other)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False  # gone or replaced: not what it was
    except PermissionError:
        # who only looks opens nothing: then all else that is known decides
        return isinstance(first, OriginalSide) and first.is_looking


def _within(ordered: Sequence[str], place: str) -> Iterator[str]:
    """Yield those of the sorted paths that are at or below `place`."""
    if not place:
        yield from ordered
        return
    start = bisect_left(ordered, place)
    if ordered[start : start + 1] == [place]:
        yield place
    first, last = (bisect_left(ordered, f"{place}{end}") for end in ("/", "0"))  # "0" follows "/"
    yield from ordered[first:last]


def _happened(before: FileStat | None, after: FileStat | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if before.kind != after.kind:
        return f"replaced by a {after.kind}"
    return "modified"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that lead from one state to another."""

    changes: Sequence[Change]
    before: ReadableFilesystem
    after: ReadableFilesystem
    is_reviewed: Callable[[str], bool]
    renames: Callable[[], Renames] = lambda: Renames(())
    """Gives the names of files that have moved."""

    def plan(self, original: PreservingFilesystem, *, looking: bool = False) -> Plan:
        """Hold the changes against the original; `looking` opens nothing that is closed."""
        sides = Side(self.before), Side(self.after)
        with OriginalSide(original, looking=looking) as now:
            return Plan(self.changes, now, sides, self.is_reviewed)

    def conflicts(
        self, original: PreservingFilesystem, plan: Plan, *, looking: bool = False
    ) -> tuple[Conflict, ...]:
        """Return what stands against a plan, and whether both changes go together.

        A rename is one change: what stands against one of its names stands against both.
        """
        merged = {each.path for each in self.merges(original, plan, looking=looking)}
        found = [replace(each, can_merge=each.path in merged) for each in plan.conflicts]
        return tuple(with_other_names(found, self.renames() if found else Renames(())))

    def merges(
        self, original: PreservingFilesystem, plan: Plan, *, looking: bool = False
    ) -> list[Merge]:
        """Return the conflicts of a plan in which both changes go together."""
        paths = {each.path for each in plan.conflicts}
        changes = [each for each in self.changes if each.path in paths]
        with OriginalSide(original, looking=looking) as now:
            sides = Side(self.before), Side(self.after), now
            found = [_merge_of(each, sides) for each in changes]
        return [each for each in found if each is not None]

    def merged(self, merges: Sequence[Merge]) -> "ChangeSet":
        """Return the way on which these files begin as they are in the original, and get both."""
        before = {each.path: each.original for each in merges}
        after = {each.path: each.merged for each in merges}
        changes = [
            replace(
                each,
                before=before[each.path].stat(each.path),
                after=after[each.path].stat(each.path),
            )
            if each.path in before
            else each
            for each in self.changes
        ]
        return replace(
            self,
            changes=changes,
            before=ReplacedFilesystem(self.before, before),
            after=ReplacedFilesystem(self.after, after),
        )

    def back(self) -> "ChangeSet":
        """Return the same way back."""
        changes = [replace(each, before=each.after, after=each.before) for each in self.changes]
        return replace(self, changes=changes, before=self.after, after=self.before)


def _merge_of(change: Change, sides: tuple[Side, Side, OriginalSide]) -> Merge | None:
    try:
        return merge_of(change, sides[2].lookup(change.path), sides)
    except (PermissionError, IsADirectoryError, NotADirectoryError, StaleDiffError):
        return None  # nobody can read what would be merged, or it is being saved just now
