"""The review of what was done in a working copy: shown, then applied, saved or discarded."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from weakincentives.contrib.review.apply import (
    Attributes,
    Transaction,
    lost_attributes,
)
from weakincentives.contrib.review.conflicts import (
    ChangeSet,
    Conflict,
    ConflictError,
    Kept,
    Plan,
    Renames,
    Step,
    select_changes,
)
from weakincentives.contrib.review.copy import remove_place
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.records import (
    Application,
    Kind,
    Record,
    WorkingCopy,
    exclusion,
    open_files,
    read_record,
    write_record,
)
from weakincentives.contrib.review.recovery import (
    Interrupted,
    Recovery,
    has_pending,
    interrupted_in,
    original_of,
    refuse_interrupted,
    settle_all,
)
from weakincentives.contrib.review.views import (
    Boundary,
    FilteredFilesystem,
    OriginalFilesystem,
    PreservingFilesystem,
)
from weakincentives.filesystem import (
    Change,
    Diff,
    FilesystemSnapshot,
    Omission,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.diff import Side, find_moves
from weakincentives.posix import store_file, write_all

_MAX_SHOWN = 5
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Applied:
    """What was brought into the original, or taken back."""

    paths: tuple[str, ...]
    """What has changed in the original, sorted."""
    merged: tuple[str, ...] = ()
    """The files that have got what both sides changed."""
    kept_directories: tuple[str, ...] = ()
    """Directories that should have gone, and hold something that was not reviewed."""
    kept: tuple[Kept, ...] = ()
    """What was left as somebody made it meanwhile, and where the other states of it are."""

    def __str__(self) -> str:
        """Return how many there are."""
        number = len(self.paths)
        return f"{number} path{'' if number == 1 else 's'} changed"


class Review:
    """What was changed in a working copy, as it was when it was first looked at.

    Nothing is done to the original but by `apply` and `undo`. What was changed inside of
    `.git`, or where else a repository has its data, or where nothing was copied from, pipes
    and the like, and rights to run as somebody else are withheld: they are no part of the
    difference, and are applied only if asked for. A rename is one change: who chooses one of
    its names chooses both, and a conflict at one is a conflict at both.
    """

    def __init__(
        self, copy: WorkingCopy, *, with_git: bool = False, with_rights: bool = False
    ) -> None:
        """Review `copy`.

        Args:
            copy: The working copy.
            with_git: Let changes of git's own data be applied too.
            with_rights: Let set-user-id and set-group-id bits, and sticky ones of files, be
                applied too, where they were set in the copy.
        """
        self.copy = copy
        self._boundary = Boundary(
            lambda: self._base,
            exclusion(copy.exclude),
            copy.git_dirs,
            with_git=with_git,
            with_rights=with_rights,
        )
        self._skipped = {each.path for each in copy.skipped}
        self._files: PreservingFilesystem | None = open_files(copy)

    @cached_property
    def diff(self) -> Diff:
        """What was changed and is not withheld; `refresh` looks again."""
        return self._compared()

    @cached_property
    def withheld(self) -> tuple[Change, ...]:
        """What was changed and is not applied, sorted by path."""
        return tuple(self._boundary.withheld(self._found))

    def refresh(self) -> None:
        """Look at the copy again: somebody has worked in it."""
        for name in ("diff", "withheld", "_after", "_found", "_changes", "_renames"):
            self.__dict__.pop(name, None)

    def conflicts(self, paths: Sequence[str] | None = None) -> tuple[Conflict, ...]:
        """Return what was changed on both sides, at and below `paths`; the original is read.

        Raises:
            ApplyInterruptedError: An apply was interrupted; see `recover`.
        """
        way = self._way(paths)
        with original_of(self.copy.original, looking=True) as original:
            refuse_interrupted(original, self.copy.original)
            return way.conflicts(original, way.plan(original, looking=True), looking=True)

    def merges(self, paths: Sequence[str] | None = None) -> tuple[Merge, ...]:
        """Return the files in which both changes go together, as `merge` would make them."""
        way = self._way(paths)
        with original_of(self.copy.original, looking=True) as original:
            refuse_interrupted(original, self.copy.original)
            plan = way.plan(original, looking=True)
            return tuple(way.merges(original, plan, looking=True))

    @property
    def interrupted(self) -> Interrupted | None:
        """What was interrupted in the original half-way, by whoever; looking changes nothing."""
        with original_of(self.copy.original, looking=True) as original:
            return interrupted_in(original, self.copy.original)

    def recover(self) -> Applied:
        """Roll back an `apply` or `undo` of this copy that was interrupted; `apply` does it too.

        A path goes back only if it has exactly what was put there. What somebody has saved
        since stays, and is in `kept`. Changes that had been made completely stay.

        Raises:
            ApplyInterruptedError: It was interrupted for another copy.
        """
        with original_of(self.copy.original) as original:
            found = settle_all(original, self.copy.original, self.copy.place, self._settle)
        return _recovered([each for each in found if not each.is_done])

    def apply(self, paths: Sequence[str] | None = None, *, merge: bool = False) -> Applied:
        """Bring the changes into the original, or those at and below `paths`: all or none.

        Only what was changed in the copy is touched. What the original has already is
        left as it is. With `merge`, a text file that was changed on both sides in
        different places gets both changes.

        Raises:
            ConflictError: Something was changed on both sides, before or at this moment; the
                original is as it was, but for what somebody has saved meanwhile.
            ValueError: Nothing was changed at one of the paths.
        """
        way = self._way(paths)
        with original_of(self.copy.original) as original:
            self._recover(original)
            plan = way.plan(original)
            merges = way.merges(original, plan) if merge else []
            if merges:
                way = way.merged(merges)
                plan = way.plan(original)
            if plan.conflicts:
                raise ConflictError(way.conflicts(original, plan))
            if not plan.steps:
                return _applied(plan, merges)
            number = len(read_record(self.copy.place).applied)
            lost = lost_attributes(original, plan.steps)
            moved = self._moved_attributes(plan.steps, lost)
            work = self._transaction(original, way, plan, "apply", number, moved)
            self._remember(plan.steps, merges, lost)
            kept = work.run(partial(self._settle, work.record))
        return replace(_applied(plan, merges), kept=kept)

    def undo(self) -> Applied:
        """Take back what was applied last; what was changed before and since stays.

        Raises:
            ConflictError: What was applied has been changed since; nothing was taken back.
            ValueError: Nothing was applied.
        """
        with original_of(self.copy.original) as original:
            recovered = self._recover(original)
            # what was interrupted was the latest apply, or this undo
            ended = [each for each in recovered if each.is_done == (each.kind == "undo")]
            if any(each.paths for each in ended):
                return _recovered(ended)
            while applied := read_record(self.copy.place).applied:
                way = self._way_of(applied[-1]).back()
                plan = way.plan(original)
                if plan.conflicts:
                    raise ConflictError(plan.conflicts)
                number = len(applied) - 1
                if not plan.steps:  # a process was killed before it had applied anything
                    self._forget(number)
                    continue
                attributes = applied[-1].attributes
                work = self._transaction(original, way, plan, "undo", number, attributes)
                kept = work.run(partial(self._settle, work.record))
                return replace(_applied(plan, ()), kept=kept)
        raise ValueError(f"Nothing was applied to {str(self.copy.original)!r}")

    def save_patch(
        self, path: str | os.PathLike[str], *, paths: Sequence[str] | None = None
    ) -> Path:
        """Write the difference, or what is at and below `paths`, as a patch for `git apply`.

        What the patch cannot say is in `omissions`.

        Raises:
            ValueError: Nothing was changed, or nothing that git can be told.
        """
        shown = self._selected(paths)
        if not shown:
            raise ValueError("Nothing was changed, so there is no patch to save")
        if not any(chunk.startswith(b"diff --git ") for chunk in shown.patch_chunks()):
            facts = "; ".join(map(str, shown.omissions[:_MAX_SHOWN]))
            raise ValueError(f"A patch can say nothing of what was changed: {facts}")
        target = Path(path).absolute()

        def fill(descriptor: int) -> None:
            for chunk in shown.patch_chunks():
                write_all(descriptor, chunk)

        directory = os.open(target.parent, _DIRECTORY)
        try:
            store_file(directory, target.name, fill, durable=True)
        finally:
            os.close(directory)
        return target

    def omissions(self, paths: Sequence[str] | None = None) -> tuple[Omission, ...]:
        """Return what a patch does not say: what git cannot be told, and what is withheld."""
        withheld = [Omission(each.path, f"{each.kind}, not offered") for each in self.withheld]
        found = {each.path: each for each in (*withheld, *self._selected(paths).omissions)}
        return tuple(found[path] for path in sorted(found))

    def discard(self) -> None:
        """Remove the copy with its history: nothing can be applied or undone any more.

        Raises:
            ConflictError: An apply was interrupted, and was rolled back but for what somebody
                has saved since; the copy is still there.
        """
        with suppress(FileNotFoundError, NotADirectoryError):  # the original is gone
            with original_of(self.copy.original, looking=True) as original:
                is_interrupted = has_pending(original, self.copy.place)
            if is_interrupted:
                with original_of(self.copy.original) as original:
                    self._recover(original)
        self.close()
        remove_place(self.copy.place)

    def close(self) -> None:
        """Let go of the copy, which stays."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # --- steps ---

    @cached_property
    def _after(self) -> FilesystemSnapshot:
        return self._opened.snapshot(tag="as it was reviewed")

    @cached_property
    def _found(self) -> Sequence[Change]:
        """Everything that was changed."""
        return diff(self._view(self.copy.base), self._view(self._after), renames=False).entries

    @cached_property
    def _changes(self) -> Sequence[Change]:
        """Everything that was changed and is not withheld."""
        return self._boundary.offered(self._found)

    @cached_property
    def _base(self) -> Side:
        return Side(self._view(self.copy.base))

    @cached_property
    def _renames(self) -> Renames:
        """The names of what has moved, also to where something else was."""
        offered = {each.path for each in self._changes}
        changes = [each for each in self._found if each.path in offered]
        sides = Side(self._view(self.copy.base)), Side(self._view(self._after))
        pairs = [(each.source, each.path) for each in self.diff.entries if each.source]
        return Renames([*pairs, *find_moves(changes, *sides).items()])

    def _selected(self, paths: Sequence[str] | None) -> Diff:
        if paths is None:
            return self.diff
        wanted = {each.path for each in select_changes(self._changes, paths, lambda: self._renames)}
        return self.diff.only(lambda each: each.path in wanted)

    def _compared(self) -> Diff:
        sides = self._view(self.copy.base), self._view(self._after)
        if self.withheld:
            boundary = self._boundary
            before = FilteredFilesystem(sides[0], boundary.hides)
            after = FilteredFilesystem(sides[1], boundary.hides, boundary.without_rights)
            return diff(before, after).on(sides[0])
        return diff(*sides)

    @property
    def _opened(self) -> PreservingFilesystem:
        if self._files is None:
            raise ValueError(f"Review is closed: {str(self.copy.place)!r}")
        return self._files

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return self._opened.view(snapshot)

    def _is_reviewed(self, path: str) -> bool:
        return not self._boundary.hides(path) and path not in self._skipped

    def _way(self, paths: Sequence[str] | None) -> ChangeSet:
        changes = select_changes(self._changes, paths, lambda: self._renames)
        sides = self._view(self.copy.base), self._view(self._after)
        return ChangeSet(changes, *sides, self._is_reviewed, lambda: self._renames)

    def _way_of(self, applied: Application) -> ChangeSet:
        sides = self._view(self.copy.base), self._view(applied.after)
        wanted = set(applied.paths)
        found = diff(*sides, renames=False).entries
        changes = self._boundary.offered([each for each in found if each.path in wanted])
        return ChangeSet(changes, *sides, self._is_reviewed).merged(applied.merges)

    def _transaction(
        self,
        original: OriginalFilesystem,
        way: ChangeSet,
        plan: Plan,
        kind: Kind,
        number: int,
        attributes: Attributes = MappingProxyType({}),
    ) -> Transaction:
        """Prepare the changes of a plan; nothing has changed yet."""
        return Transaction(
            original,
            plan.steps,
            (Side(way.before), Side(way.after)),
            kind=kind,
            place=self.copy.place,
            number=number,
            attributes=attributes,
        )

    def _moved_attributes(self, steps: Sequence[Step], lost: Attributes) -> Attributes:
        """Return the extended attributes of files that come back under another name."""
        if not lost:
            return lost
        sources = {step.path: self._renames.source(step.path) for step in steps}
        return {path: lost[source] for path, source in sources.items() if source in lost}

    def _recover(self, original: OriginalFilesystem) -> list[Recovery]:
        """Settle what was interrupted, and say so if something could not be rolled back."""
        found = settle_all(original, self.copy.original, self.copy.place, self._settle)
        kept = [each for recovery in found for each in recovery.kept]
        if kept:
            raise ConflictError((), kept=kept)
        return found

    def _remember(
        self, steps: Sequence[Step], merges: Sequence[Merge], attributes: Attributes
    ) -> None:
        """Take note of what is about to be applied."""
        record = read_record(self.copy.place)
        paths = tuple(step.path for step in steps)
        kept = {path: dict(each) for path, each in attributes.items()}
        application = Application(self._after, paths, tuple(merges), kept)
        write_record(self.copy.place, replace(record, applied=(*record.applied, application)))

    def _settle(self, changes: Record, done: bool) -> None:
        """Forget what was applied if it was undone, or was not applied after all."""
        if done == (changes.kind == "undo"):
            self._forget(changes.number)

    def _forget(self, number: int) -> None:
        record = read_record(self.copy.place)
        if len(record.applied) > number:
            write_record(self.copy.place, replace(record, applied=record.applied[:number]))


def _applied(plan: Plan, merges: Sequence[Merge]) -> Applied:
    return Applied(
        paths=tuple(step.path for step in plan.steps),
        merged=tuple(each.path for each in merges),
        kept_directories=tuple(plan.kept_directories),
    )


def _recovered(recoveries: Sequence[Recovery]) -> Applied:
    return Applied(
        paths=tuple(sorted({path for each in recoveries for path in each.paths})),
        kept=tuple(kept for each in recoveries for kept in each.kept),
    )
