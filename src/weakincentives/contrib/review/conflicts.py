"""The conflict check of an apply: changes of a copy against the current state of the original.

Files are compared by content, never by time. A change applies cleanly if the original still
has what the copy started with; it is skipped if the original already has the new state;
anything else is a conflict.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeGuard

from weakincentives.contrib.review.merge import (
    MAX_BYTES,
    Merge,
    Versions,
    find_overlaps,
    merge_versions,
)
from weakincentives.contrib.review.original import Original
from weakincentives.contrib.review.views import LayeredFilesystem, Version
from weakincentives.errors import WinkError
from weakincentives.filesystem import Change, Diff, FileStat, ReadableFilesystem
from weakincentives.filesystem.base import outermost
from weakincentives.filesystem.diff import Side, find_moves
from weakincentives.history import Edit, EntryState, Kept
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


class Plan:
    """The edits that bring changes into the original, and the conflicts that prevent them."""

    def __init__(
        self, change_set: "ChangeSet", original: Original, merges: Sequence[Merge] = ()
    ) -> None:
        """Check the changes of `change_set`, in which `merges` are made already.

        Paths that are not reviewed stay in the original, and so do the directories above them.
        """
        self.change_set: ChangeSet = change_set
        self.original: Original = original
        self.merges: Sequence[Merge] = merges
        changes = change_set.changes
        self._sides = Side(change_set.before), Side(change_set.after)
        self._made = {each.path for each in changes if is_directory(each.after)}
        self._gone = {each.path for each in changes if each.after is None}
        self.edits: list[Edit] = []
        """They expect what was seen here: what somebody does since is a conflict."""
        self.conflicts: list[Conflict] = []
        self.kept_directories: list[str] = []
        with original.look() as self._look:
            for change in reversed(changes):  # children come before their directory
                check_time("Review")
                try:
                    self._check_change(change, self._look.state(change.path))
                except PermissionError as error:
                    self._add_conflict(change, f"not readable ({error.strerror})")
        for found in (self.edits, self.conflicts, self.kept_directories):
            found.reverse()

    def merge(self) -> "Plan":
        """Return the plan in which a three-way merge resolves what it can."""
        merges = self.find_merges()
        return Plan(self.change_set.with_merges(merges), self.original, merges) if merges else self

    def find_merges(self) -> list[Merge]:
        """Return the conflicts that a three-way merge resolves."""
        found = [
            merge_versions(each.path, versions)
            for each, versions in self._read_conflicts()
            if versions is not None
        ]
        return [each for each in found if each is not None]

    def explain_conflicts(self) -> tuple[Conflict, ...]:
        """Return the conflicts, and whether a merge resolves each.

        A rename is one change: a conflict with one of its names is a conflict with both.
        """
        found = [
            each
            if versions is None
            else replace(each, can_merge=True)
            if merge_versions(each.path, versions)
            else replace(each, lines=find_overlaps(versions))
            for each, versions in self._read_conflicts()
        ]
        renames = self.change_set.renames() if found else Renames(())
        return tuple(add_rename_conflicts(found, renames))

    def without_conflicts(self) -> tuple["Plan", list[Conflict]]:
        """Return the plan of the part that applies cleanly, and what is left out."""
        left: dict[str, Conflict] = {}
        plan = self
        while plan.conflicts:
            for each in plan.explain_conflicts():
                left.setdefault(each.path, each)
            changes = [each for each in plan.change_set.changes if each.path not in left]
            plan = Plan(replace(plan.change_set, changes=changes), self.original, self.merges)
        return plan, list(left.values())

    def find_change(self, path: str) -> Change:
        """Return the change of an edit at or below a path."""
        below = (each.path for each in self.edits if f"{each.path}/".startswith(f"{path}/"))
        first = min(below)
        return next(each for each in self.change_set.changes if each.path == first)

    # --- steps ---

    def _read_conflicts(self) -> Iterator[tuple[Conflict, Versions | None]]:
        """Yield each conflict with its three versions; None unless all are files, not too large."""
        changes = {each.path: each for each in self.change_set.changes}
        with self.original.look() as look:
            for each in self.conflicts:
                change = changes[each.path]
                base, ours = map(_read, self._sides, (change.before, change.after))
                theirs = look.version(each.path, MAX_BYTES) if base and ours else None
                yield each, None if not (base and ours and theirs) else (base, ours, theirs)

    def _check_change(self, change: Change, now: EntryState) -> None:
        before, after = map(_state, self._sides, (change.before, change.after))
        is_made = before.kind != "directory" and now.kind == after.kind == "directory"
        # a directory that was created on both sides may have other permissions
        if is_made or _is_same(now, after):
            return
        fact = self._find_conflict_above(change)
        if not fact and not _is_same(now, before):
            fact = _describe_change(before.kind, now.kind)
        edit = Edit(change.path, now, after)
        if fact:
            self._add_conflict(change, fact)
        elif now.kind == "directory" != after.kind:
            self._remove_directory(change, edit)
        elif now.kind == "file":
            self.edits.append(replace(edit, attributes=self._look.attributes(change.path)))
        else:
            self.edits.append(edit)

    def _add_conflict(self, change: Change, fact: str) -> None:
        self.conflicts.append(create_conflict(change, fact))

    def _find_conflict_above(self, change: Change) -> str:
        for parent in parents_of(change.path) if change.after is not None else ():
            found = self._look.state(parent)
            if parent not in self._made and found.kind != "directory":
                became = "removed" if found.kind == "absent" else f"replaced by a {found.kind}"
                return f"{display_path(parent)} {became}"
        return ""

    def _remove_directory(self, change: Change, edit: Edit) -> None:
        """Remove a directory, unless it contains something that the copy never had."""
        left = [join(edit.path, name) for name in self._look.names(edit.path)]
        left = sorted(
            path for path in left if path not in self._gone or path in self.kept_directories
        )
        reviewed = [
            path
            for path in left
            if path not in self.kept_directories and self.change_set.is_reviewed(path)
        ]
        if reviewed or (left and change.after is not None):
            self._add_conflict(change, f"{display_path((reviewed or left)[0])} added")
        elif left:
            self.kept_directories.append(edit.path)
        else:
            self.edits.append(edit)


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

    def target(self, path: str) -> str:
        """Return the new name of `path`; empty if it was not renamed."""
        return self._targets.get(path, "")

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


def _state(side: Side, found: FileStat | None) -> EntryState:
    """Return an entry of a side; a file is read only if its blob id is unknown."""
    if found is None:
        return EntryState()
    if found.link_target is not None:
        return EntryState("symlink", target=found.link_target)
    if not found.is_file:
        return EntryState(found.kind, found.permissions)
    return EntryState("file", found.permissions, found.size_bytes, side.blob_id(found))


def _is_same(now: EntryState, wanted: EntryState) -> bool:
    """Return whether an entry is as wanted; by its metadata if it could not be read."""
    is_unread = now.kind == "file" and not now.blob
    return now == (replace(wanted, blob="") if is_unread else wanted)


def _read(side: Side, found: FileStat | None) -> Version | None:
    if found is None or not found.is_file or found.size_bytes > MAX_BYTES:
        return None
    return Version(side.data(found), found.permissions)


def is_directory(found: FileStat | None) -> TypeGuard[FileStat]:
    """Return whether an entry exists and is a directory."""
    return found is not None and found.is_directory


def create_conflict(change: Change, in_original: str) -> Conflict:
    """Return the conflict of a change in the copy with what happened in the original."""
    kinds = ("absent" if each is None else each.kind for each in (change.before, change.after))
    return Conflict(change.path, _describe_change(*kinds), in_original)


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


def _describe_change(before: str, after: str) -> str:
    """Return what happened to an entry, by its kinds."""
    if before == after:
        return "modified"
    if before == "absent":
        return "added"
    return "removed" if after == "absent" else f"replaced by a {after}"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that lead from one state to another, to be checked against the original."""

    changes: Sequence[Change]
    before: ReadableFilesystem
    after: ReadableFilesystem
    is_reviewed: Callable[[str], bool]
    renames: Callable[[], Renames] = lambda: Renames(())
    """Returns the renames among the changes."""

    def with_merges(self, merges: Sequence[Merge]) -> "ChangeSet":
        """Return the change set with these files merged, starting from the original."""
        return self.with_files(
            {each.path: each.merged for each in merges},
            {each.path: each.original for each in merges},
        )

    def with_files(
        self, after: Mapping[str, Version], before: Mapping[str, Version] = MappingProxyType({})
    ) -> "ChangeSet":
        """Return the change set that gives files other contents than the copy has."""
        if not after:
            return self
        changes = list(self.changes)
        for at, each in enumerate(changes):
            if each.path in after:
                new, old = after[each.path], before.get(each.path)
                changes[at] = replace(
                    each,
                    before=each.before if old is None else old.lookup(each.path),
                    after=new.lookup(each.path),
                )
        return replace(
            self,
            changes=changes,
            before=LayeredFilesystem(self.before, before) if before else self.before,
            after=LayeredFilesystem(self.after, after),
        )

    def inverse(self) -> "ChangeSet":
        """Return the change set in the other direction."""
        changes = [replace(each, before=each.after, after=each.before) for each in self.changes]
        return replace(self, changes=changes, before=self.after, after=self.before)
