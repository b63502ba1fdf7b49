"""The conflict check of an apply: changes of a copy against the current state of the original.

Files are compared by content, never by time. A change applies cleanly if the original still
has what the copy started with; it is skipped if the original already has the new state;
anything else is a conflict.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from weakincentives.contrib.review.merge import Merge, find_overlaps, try_merge
from weakincentives.contrib.review.views import (
    OriginalSide,
    PreservingFilesystem,
    ReplacedFilesystem,
    Version,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import Change, Diff, FileStat, ReadableFilesystem
from weakincentives.filesystem.base import outermost
from weakincentives.filesystem.diff import Side, StaleDiffError, find_moves, same_bytes
from weakincentives.history import Kept
from weakincentives.posix import check_time, display_path, join, parents_of

_MAX_CONFLICTS = 10  # in a message
_MAX_PLACES = 5  # of a conflict


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that changed in the copy, and since then in the original too."""

    path: str
    in_copy: str
    """What happened to it in the copy."""
    in_original: str
    """What happened in the original to it, or to something above or below it."""
    can_merge: bool = False
    """Whether a three-way merge resolves the conflict."""
    lines: tuple[tuple[int, int], ...] = ()
    """The first and last lines of the places in the original that both sides changed."""

    def __str__(self) -> str:
        """Return the path and both sides."""
        tail = ", in different places" if self.can_merge else ""
        if self.lines:
            places = [
                f"{first}" if first == last else f"{first}-{last}" for first, last in self.lines
            ]
            more = ", ..." if len(places) > _MAX_PLACES else ""
            word = "line" if len(places) == 1 and "-" not in places[0] else "lines"
            tail = f", both at {word} {', '.join(places[:_MAX_PLACES])}{more}"
        facts = f"{self.in_copy} in the copy, {self.in_original} in the original"
        return f"{display_path(self.path)}: {facts}{tail}"


class ConflictError(WinkError, RuntimeError):
    """Paths changed on both sides; nothing was applied, or undone."""

    def __init__(
        self,
        conflicts: Sequence[Conflict],
        *,
        kept: Sequence[Kept] = (),
        kind: Literal["apply", "undo"] = "apply",
    ) -> None:
        """Store the conflicts of an apply or undo, and the changes that were left alone."""
        self.conflicts: tuple[Conflict, ...] = tuple(conflicts)
        self.kept: tuple[Kept, ...] = tuple(kept)
        self.kind: Literal["apply", "undo"] = kind
        super().__init__(self.conflicts, self.kept)

    def __str__(self) -> str:
        """Return the first conflicts and everything that was left alone."""
        lines = [str(each) for each in self.conflicts[:_MAX_CONFLICTS]]
        more = len(self.conflicts) - len(lines)
        tail = f"; and {more} more" if more else ""
        if self.kind == "undo":
            fact = (
                f"Nothing was undone: {'; '.join(lines)}{tail}" if lines else "Nothing was undone"
            )
        elif lines:
            fact = f"Nothing was applied: paths changed on both sides: {'; '.join(lines)}{tail}"
        else:
            fact = "Nothing was applied: an interrupted apply was rolled back, but not completely"
        return "; ".join((fact, *map(str, self.kept)))


@dataclass(frozen=True, slots=True)
class Step:
    """The change of one path of the original."""

    path: str
    now: FileStat | None
    wanted: FileStat | None
    change: Change


class Plan:
    """The steps that bring changes into the original, and the conflicts that prevent them."""

    def __init__(
        self,
        changes: Sequence[Change],
        original: OriginalSide,
        sides: tuple[Side, Side],
        is_reviewed: Callable[[str], bool],
    ) -> None:
        """Check `changes`, which lead from the first of the `sides` to the second.

        Paths that are not reviewed stay in the original, and so do the directories above them.
        """
        self._original = original
        self._before, self._after = sides
        self._is_reviewed = is_reviewed
        self._made = {each.path for each in changes if is_directory(each.after)}
        self._gone = {each.path for each in changes if each.after is None}
        self.steps: list[Step] = []
        self.conflicts: list[Conflict] = []
        self.kept_directories: list[str] = []
        for change in reversed(changes):  # children come before their directory
            check_time("Review")
            try:
                self._check_change(change, self._original.lookup(change.path))
            except PermissionError as error:
                self.conflicts.append(create_conflict(change, f"not readable ({error.strerror})"))
        for found in (self.steps, self.conflicts, self.kept_directories):
            found.reverse()

    def _check_change(self, change: Change, now: FileStat | None) -> None:
        if self._is_done(change, now):
            return
        step = Step(change.path, now, change.after, change)
        found = self._conflict_above(change) or self._conflict_at(change, now)
        if found is not None:
            self.conflicts.append(found)
        elif is_directory(now) and not is_directory(change.after):
            self._remove_directory(step)
        else:
            self.steps.append(step)

    def _is_done(self, change: Change, now: FileStat | None) -> bool:
        """Return whether the original already has the new state."""
        if is_directory(change.after) and is_directory(now) and not is_directory(change.before):
            return True  # created on both sides; differing permissions do not matter
        return is_same_entry(self._original, now, self._after, change.after)

    def _conflict_at(self, change: Change, now: FileStat | None) -> Conflict | None:
        if is_same_entry(self._original, now, self._before, change.before):
            return None
        return create_conflict(change, _describe_change(change.before, now))

    def _conflict_above(self, change: Change) -> Conflict | None:
        for parent in parents_of(change.path) if change.after is not None else ():
            found = self._original.lookup(parent)
            if parent not in self._made and not is_directory(found):
                became = "removed" if found is None else f"replaced by a {found.kind}"
                return create_conflict(change, f"{display_path(parent)} {became}")
        return None

    def _remove_directory(self, step: Step) -> None:
        """Remove a directory, unless it contains something that the copy never had."""
        left = [join(step.path, name) for name in self._original.children(step.path)]
        left = sorted(
            path for path in left if path not in self._gone or path in self.kept_directories
        )
        reviewed = [
            path for path in left if path not in self.kept_directories and self._is_reviewed(path)
        ]
        if reviewed or (left and step.wanted is not None):
            fact = f"{display_path((reviewed or left)[0])} added"
            self.conflicts.append(create_conflict(step.change, fact))
        elif left:
            self.kept_directories.append(step.path)
        else:
            self.steps.append(step)


class Renames:
    """Renamed files, from old to new names; a rename is one change."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Store pairs of old and new names; pairs that share a name form a group."""
        self._targets: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._groups: dict[str, set[str]] = {}
        for old, new in pairs:
            self._targets.setdefault(old, new)
            self._sources.setdefault(new, old)
            group = self._groups.get(old, {old}) | self._groups.get(new, {new})
            self._groups |= dict.fromkeys(group, group)

    def names(self, path: str) -> set[str]:
        """Return the group of names of `path`, including itself; empty if it was not renamed."""
        return self._groups.get(path, set())

    def source(self, path: str) -> str:
        """Return the old name of `path`; empty if it was not renamed."""
        return self._sources.get(path, "")

    def below(self, path: str) -> list[str]:
        """Return the new names below a directory, sorted."""
        return sorted(each for each in self._sources if each.startswith(f"{path}/"))

    def describe(self, path: str) -> str:
        """Return what happened to one of the names."""
        if path in self._targets:
            return f"renamed to {display_path(self._targets[path])}"
        return f"renamed from {display_path(self._sources[path])}"


def find_renames(
    named: Diff, changes: Sequence[Change], before: ReadableFilesystem, after: ReadableFilesystem
) -> Renames:
    """Return the renames in a diff, and the moves onto paths that existed before."""
    pairs = [(each.source, each.path) for each in named.entries if each.source]
    return Renames([*pairs, *find_moves(changes, Side(before), Side(after)).items()])


def select_changes(
    changes: Sequence[Change],
    paths: Sequence[str] | None,
    renames: Callable[[], Renames] = lambda: Renames(()),
) -> list[Change]:
    """Return the changes at and below `paths`, and the new directories that they need.

    Selecting one name of a rename selects all names of its group.

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
        found = {path: by_path[path] for path in _select_below(ordered, place)}
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


def add_rename_conflicts(conflicts: Sequence[Conflict], renames: Renames) -> Iterator[Conflict]:
    """Yield the conflicts, and for a conflict with a rename one for each of its names."""
    known = {each.path for each in conflicts}
    for each in conflicts:
        names = renames.names(each.path)
        yield replace(each, in_copy=renames.describe(each.path)) if names else each
        moved = {name for path in renames.below(each.path) for name in renames.names(path)}
        for other in sorted((names | moved) - known):
            known.add(other)
            fact = f"{display_path(each.path)} {each.in_original}"
            yield Conflict(other, renames.describe(other), fact)


def is_same_entry(first: Side, left: FileStat | None, second: Side, right: FileStat | None) -> bool:
    """Return whether two entries are equal; files are read if need be."""
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
    """Return whether an entry exists and is a directory."""
    return found is not None and found.is_directory


def create_conflict(change: Change, in_original: str) -> Conflict:
    """Return the conflict of a change in the copy with what happened in the original."""
    return Conflict(change.path, _describe_change(change.before, change.after), in_original)


def _same_content(first: Side, left: FileStat, second: Side, right: FileStat) -> bool:
    try:
        with first.open(left.path) as one, second.open(right.path) as other:
            return same_bytes(one, other)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False  # removed or replaced meanwhile
    except PermissionError:
        # read-only: the file is not made readable, so its metadata decides
        return isinstance(first, OriginalSide) and first.is_read_only


def _select_below(ordered: Sequence[str], place: str) -> Iterator[str]:
    """Yield the sorted paths that are at or below `place`."""
    if not place:
        yield from ordered
        return
    start = bisect_left(ordered, place)
    if ordered[start : start + 1] == [place]:
        yield place
    first, last = (bisect_left(ordered, f"{place}{end}") for end in ("/", "0"))  # "0" follows "/"
    yield from ordered[first:last]


def _describe_change(before: FileStat | None, after: FileStat | None) -> str:
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if before.kind != after.kind:
        return f"replaced by a {after.kind}"
    return "modified"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that lead from one state to another, to be checked against the original."""

    changes: Sequence[Change]
    before: ReadableFilesystem
    after: ReadableFilesystem
    is_reviewed: Callable[[str], bool]
    renames: Callable[[], Renames] = lambda: Renames(())
    """Returns the renames among the changes."""

    def plan(self, original: PreservingFilesystem, *, read_only: bool = False) -> Plan:
        """Check the changes; `read_only` does not make inaccessible paths accessible."""
        sides = Side(self.before), Side(self.after)
        with OriginalSide(original, read_only=read_only) as now:
            return Plan(self.changes, now, sides, self.is_reviewed)

    def conflicts(
        self, original: PreservingFilesystem, plan: Plan, *, read_only: bool = False
    ) -> tuple[Conflict, ...]:
        """Return the conflicts of a plan, and whether a merge resolves each.

        A rename is one change: a conflict with one of its names is a conflict with both.
        """
        merged = {each.path for each in self.merges(original, plan, read_only=read_only)}
        changes = {each.path: each for each in self.changes}
        with OriginalSide(original, read_only=read_only) as now:
            sides = Side(self.before), Side(self.after), now
            found = [
                replace(each, can_merge=True)
                if each.path in merged
                else replace(each, lines=_find_overlaps(changes[each.path], sides))
                for each in plan.conflicts
            ]
        return tuple(add_rename_conflicts(found, self.renames() if found else Renames(())))

    def merges(
        self, original: PreservingFilesystem, plan: Plan, *, read_only: bool = False
    ) -> list[Merge]:
        """Return the conflicts of a plan that a three-way merge resolves."""
        paths = {each.path for each in plan.conflicts}
        changes = [each for each in self.changes if each.path in paths]
        with OriginalSide(original, read_only=read_only) as now:
            sides = Side(self.before), Side(self.after), now
            found = [_try_merge(each, sides) for each in changes]
        return [each for each in found if each is not None]

    def with_merges(self, merges: Sequence[Merge]) -> "ChangeSet":
        """Return the change set with these files merged, starting from the original."""
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

    def with_contents(self, contents: Mapping[str, Version]) -> "ChangeSet":
        """Return the change set that gives these files other contents than the copy has."""
        if not contents:
            return self
        changes = [
            replace(each, after=contents[each.path].stat(each.path))
            if each.path in contents
            else each
            for each in self.changes
        ]
        return replace(self, changes=changes, after=ReplacedFilesystem(self.after, contents))

    def without_conflicts(
        self, original: PreservingFilesystem
    ) -> tuple["ChangeSet", Plan, list[Conflict]]:
        """Return the part that applies cleanly, its plan, and the conflicts that are left out."""
        left: dict[str, Conflict] = {}
        change_set = self
        while (plan := change_set.plan(original)).conflicts:
            for each in change_set.conflicts(original, plan):
                left.setdefault(each.path, each)
            changes = [each for each in change_set.changes if each.path not in left]
            change_set = replace(change_set, changes=changes)
        return change_set, plan, list(left.values())

    def inverse(self) -> "ChangeSet":
        """Return the change set in the other direction."""
        changes = [replace(each, before=each.after, after=each.before) for each in self.changes]
        return replace(self, changes=changes, before=self.after, after=self.before)


def _find_overlaps(
    change: Change, sides: tuple[Side, Side, OriginalSide]
) -> tuple[tuple[int, int], ...]:
    try:
        return find_overlaps(change, sides[2].lookup(change.path), sides)
    except (PermissionError, IsADirectoryError, NotADirectoryError, StaleDiffError):
        return ()  # unreadable, or being saved at this moment


def _try_merge(change: Change, sides: tuple[Side, Side, OriginalSide]) -> Merge | None:
    try:
        return try_merge(change, sides[2].lookup(change.path), sides)
    except (PermissionError, IsADirectoryError, NotADirectoryError, StaleDiffError):
        return None  # unreadable, or being saved at this moment
