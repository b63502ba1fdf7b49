"""Review of a working copy: diff, conflicts, apply, undo, save as a patch, discard."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from weakincentives.contrib.review import records
from weakincentives.contrib.review.apply import (
    Attributes,
    Transaction,
    collect_attributes,
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
from weakincentives.contrib.review.recovery import (
    Interrupted,
    Recovery,
    ensure_not_interrupted,
    find_interrupted_apply,
    has_pending,
    open_original,
    recover_all,
)
from weakincentives.contrib.review.views import (
    FilteredFilesystem,
    OriginalFilesystem,
    PreservingFilesystem,
    ReviewFilter,
)
from weakincentives.filesystem import (
    Change,
    Diff,
    FilesystemSnapshot,
    Omission,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.filesystem.diff import Side, find_moves
from weakincentives.posix import store_file, write_all

_MAX_OMISSIONS = 5
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an apply, an undo or a recovery."""

    paths: tuple[str, ...]
    """The paths that changed in the original, sorted."""
    merged: tuple[str, ...] = ()
    """The files in which both changes were merged."""
    kept_directories: tuple[str, ...] = ()
    """Directories that were not removed because they hold something outside the review."""
    kept: tuple[Kept, ...] = ()
    """Concurrent changes that were left alone, and where the other versions are."""

    def __str__(self) -> str:
        """Return the number of changed paths."""
        number = len(self.paths)
        return f"{number} path{'' if number == 1 else 's'} changed"


class Review:
    """The changes in a working copy, as of the first look at them.

    Only `apply`, `undo` and `recover` change the original. Some changes are withheld: they are
    not part of the diff, and are applied only on request. These are changes to git's data (in
    `.git` or wherever a repository keeps it), to excluded paths, pipes and other special files,
    and setuid and setgid bits. A rename is one change: selecting one of its names selects both,
    and a conflict at one is a conflict at both.
    """

    def __init__(
        self, copy: records.WorkingCopy, *, with_git: bool = False, with_rights: bool = False
    ) -> None:
        """Review `copy`.

        Args:
            copy: The working copy.
            with_git: Offer changes to git's data too.
            with_rights: Offer setuid, setgid and (for files) sticky bits too that were set in
                the copy.
        """
        self.copy = copy
        self._filter = ReviewFilter(
            lambda: self._base,
            records.exclusion_filter(copy.exclude),
            copy.git_dirs,
            with_git=with_git,
            with_rights=with_rights,
        )
        self._skipped = {each.path for each in copy.skipped}
        self._files: PreservingFilesystem | None = records.open_files(copy)

    @cached_property
    def diff(self) -> Diff:
        """The offered changes; `refresh` recomputes them."""
        return self._compute_diff()

    @cached_property
    def withheld(self) -> tuple[Change, ...]:
        """The changes that are not offered, sorted by path."""
        return tuple(self._filter.withhold(self._all_changes))

    def refresh(self) -> None:
        """Read the copy again after more work in it."""
        for name in ("diff", "withheld", "_after", "_all_changes", "_offered_changes", "_renames"):
            self.__dict__.pop(name, None)

    def conflicts(self, paths: Sequence[str] | None = None) -> tuple[Conflict, ...]:
        """Return the paths at and below `paths` that changed on both sides.

        Raises:
            ApplyInterruptedError: An apply was interrupted; see `recover`.
        """
        change_set = self._change_set(paths)
        with open_original(self.copy.original, read_only=True) as original:
            ensure_not_interrupted(original, self.copy.original)
            return change_set.conflicts(
                original, change_set.plan(original, read_only=True), read_only=True
            )

    def merges(self, paths: Sequence[str] | None = None) -> tuple[Merge, ...]:
        """Return the conflicts that a three-way merge resolves, with the merged content."""
        change_set = self._change_set(paths)
        with open_original(self.copy.original, read_only=True) as original:
            ensure_not_interrupted(original, self.copy.original)
            plan = change_set.plan(original, read_only=True)
            return tuple(change_set.merges(original, plan, read_only=True))

    @property
    def interrupted(self) -> Interrupted | None:
        """The apply or undo that was interrupted in the original, by any copy; read-only."""
        with open_original(self.copy.original, read_only=True) as original:
            return find_interrupted_apply(original, self.copy.original)

    def recover(self) -> Applied:
        """Roll back an interrupted `apply` or `undo` of this copy; `apply` does it too.

        A path is rolled back only if it still has exactly what the transaction put there.
        Later saves are left alone and reported in `kept`. A transaction that had committed
        stays.

        Raises:
            ApplyInterruptedError: The interrupted transaction belongs to another copy.
        """
        with open_original(self.copy.original) as original:
            found = recover_all(original, self.copy.original, self.copy.place, self._on_end)
        return _summarize_recoveries([each for each in found if not each.is_done])

    def apply(self, paths: Sequence[str] | None = None, *, merge: bool = False) -> Applied:
        """Apply the changes, or those at and below `paths`, to the original: all or nothing.

        Only changed paths are touched, and not those that already have the new state. With
        `merge`, a text file that changed on both sides in different places gets both changes.

        Raises:
            ConflictError: A path changed on both sides, before or during the apply; the
                original is unchanged except for concurrent saves.
            ValueError: Nothing was changed at one of the paths.
        """
        change_set = self._change_set(paths)
        with open_original(self.copy.original) as original:
            self._recover(original)
            plan = change_set.plan(original)
            merges = change_set.merges(original, plan) if merge else []
            if merges:
                change_set = change_set.with_merges(merges)
                plan = change_set.plan(original)
            if plan.conflicts:
                raise ConflictError(change_set.conflicts(original, plan))
            if not plan.steps:
                return _summarize(plan, merges)
            number = len(records.read_record(self.copy.place).applied)
            lost = collect_attributes(original, plan.steps)
            moved = self._moved_attributes(plan.steps, lost)
            work = self._transaction(original, change_set, plan, "apply", number, moved)
            self._record_application(plan.steps, merges, lost)
            kept = work.run(partial(self._on_end, work.record))
        return replace(_summarize(plan, merges), kept=kept)

    def undo(self) -> Applied:
        """Undo the last apply; earlier and later changes to other paths stay.

        Raises:
            ConflictError: An applied path was changed since; nothing was undone.
            ValueError: Nothing was applied.
        """
        with open_original(self.copy.original) as original:
            recovered = self._recover(original)
            # the interrupted transaction was the latest apply, or this undo
            ended = [each for each in recovered if each.is_done == (each.kind == "undo")]
            if any(each.paths for each in ended):
                return _summarize_recoveries(ended)
            while applied := records.read_record(self.copy.place).applied:
                change_set = self._applied_change_set(applied[-1]).inverse()
                plan = change_set.plan(original)
                if plan.conflicts:
                    raise ConflictError(plan.conflicts)
                number = len(applied) - 1
                if not plan.steps:  # a process was killed before it applied anything
                    self._drop_application(number)
                    continue
                attributes = applied[-1].attributes
                work = self._transaction(original, change_set, plan, "undo", number, attributes)
                kept = work.run(partial(self._on_end, work.record))
                return replace(_summarize(plan, ()), kept=kept)
        raise ValueError(f"Nothing was applied to {str(self.copy.original)!r}")

    def save_patch(
        self, path: str | os.PathLike[str], *, paths: Sequence[str] | None = None
    ) -> Path:
        """Write the diff, or the part at and below `paths`, as a patch for `git apply`.

        `omissions` lists what the patch cannot express.

        Raises:
            ValueError: Nothing was changed, or nothing that a patch can express.
        """
        changes = self._select_diff(paths)
        if not changes:
            raise ValueError("Nothing was changed, so there is no patch to save")
        if not any(chunk.startswith(b"diff --git ") for chunk in changes.patch_chunks()):
            facts = "; ".join(map(str, changes.omissions[:_MAX_OMISSIONS]))
            raise ValueError(f"A patch cannot express any of the changes: {facts}")
        target = Path(path).absolute()

        def fill(descriptor: int) -> None:
            for chunk in changes.patch_chunks():
                write_all(descriptor, chunk)

        directory = os.open(target.parent, _DIRECTORY_FLAGS)
        try:
            store_file(directory, target.name, fill, durable=True)
        finally:
            os.close(directory)
        return target

    def omissions(self, paths: Sequence[str] | None = None) -> tuple[Omission, ...]:
        """Return what a patch leaves out: what git cannot express, and withheld changes."""
        withheld = [Omission(each.path, f"{each.kind}, not offered") for each in self.withheld]
        found = {each.path: each for each in (*withheld, *self._select_diff(paths).omissions)}
        return tuple(found[path] for path in sorted(found))

    def discard(self) -> None:
        """Remove the copy and its history; after that nothing can be applied or undone.

        Raises:
            ConflictError: An interrupted apply was rolled back except for later saves; the
                copy still exists.
        """
        with suppress(FileNotFoundError, NotADirectoryError):  # the original is gone
            with open_original(self.copy.original, read_only=True) as original:
                is_interrupted = has_pending(original, self.copy.place)
            if is_interrupted:
                with open_original(self.copy.original) as original:
                    self._recover(original)
        self.close()
        remove_place(self.copy.place)

    def close(self) -> None:
        """Close the files of the copy; the copy stays."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the review."""
        self.close()

    # --- steps ---

    @cached_property
    def _after(self) -> FilesystemSnapshot:
        return self._open_files.snapshot(tag="reviewed state")

    @cached_property
    def _all_changes(self) -> Sequence[Change]:
        """All changes, withheld ones too."""
        return diff(self._view(self.copy.base), self._view(self._after), renames=False).entries

    @cached_property
    def _offered_changes(self) -> Sequence[Change]:
        """The changes that are not withheld."""
        return self._filter.offer(self._all_changes)

    @cached_property
    def _base(self) -> Side:
        return Side(self._view(self.copy.base))

    @cached_property
    def _renames(self) -> Renames:
        """The renames, including those onto a path that existed before."""
        offered = {each.path for each in self._offered_changes}
        changes = [each for each in self._all_changes if each.path in offered]
        sides = Side(self._view(self.copy.base)), Side(self._view(self._after))
        pairs = [(each.source, each.path) for each in self.diff.entries if each.source]
        return Renames([*pairs, *find_moves(changes, *sides).items()])

    def _select_diff(self, paths: Sequence[str] | None) -> Diff:
        if paths is None:
            return self.diff
        wanted = {
            each.path
            for each in select_changes(self._offered_changes, paths, lambda: self._renames)
        }
        return self.diff.only(lambda each: each.path in wanted)

    def _compute_diff(self) -> Diff:
        sides = self._view(self.copy.base), self._view(self._after)
        if self.withheld or any(is_tool_output(each.path) for each in self._all_changes):
            review_filter = self._filter
            before = FilteredFilesystem(sides[0], review_filter.hides)
            after = FilteredFilesystem(sides[1], review_filter.hides, review_filter.strip_rights)
            return diff(before, after).on(sides[0])
        return diff(*sides)

    @property
    def _open_files(self) -> PreservingFilesystem:
        if self._files is None:
            raise ValueError(f"Review is closed: {str(self.copy.place)!r}")
        return self._files

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return self._open_files.view(snapshot)

    def _is_reviewed(self, path: str) -> bool:
        return not self._filter.hides(path) and path not in self._skipped

    def _change_set(self, paths: Sequence[str] | None) -> ChangeSet:
        changes = select_changes(self._offered_changes, paths, lambda: self._renames)
        sides = self._view(self.copy.base), self._view(self._after)
        return ChangeSet(changes, *sides, self._is_reviewed, lambda: self._renames)

    def _applied_change_set(self, applied: records.Application) -> ChangeSet:
        sides = self._view(self.copy.base), self._view(applied.after)
        wanted = set(applied.paths)
        found = diff(*sides, renames=False).entries
        changes = self._filter.offer([each for each in found if each.path in wanted])
        return ChangeSet(changes, *sides, self._is_reviewed).with_merges(applied.merges)

    def _transaction(
        self,
        original: OriginalFilesystem,
        change_set: ChangeSet,
        plan: Plan,
        kind: records.TransactionKind,
        number: int,
        attributes: Attributes = MappingProxyType({}),
    ) -> Transaction:
        """Create the transaction of a plan; nothing changes yet."""
        return Transaction(
            original,
            plan.steps,
            (Side(change_set.before), Side(change_set.after)),
            kind=kind,
            place=self.copy.place,
            number=number,
            attributes=attributes,
        )

    def _moved_attributes(self, steps: Sequence[Step], lost: Attributes) -> Attributes:
        """Return the extended attributes of renamed files by their new names."""
        if not lost:
            return lost
        sources = {step.path: self._renames.source(step.path) for step in steps}
        return {path: lost[source] for path, source in sources.items() if source in lost}

    def _recover(self, original: OriginalFilesystem) -> list[Recovery]:
        """Recover interrupted transactions; raise if something could not be rolled back."""
        found = recover_all(original, self.copy.original, self.copy.place, self._on_end)
        kept = [each for recovery in found for each in recovery.kept]
        if kept:
            raise ConflictError((), kept=kept)
        return found

    def _record_application(
        self, steps: Sequence[Step], merges: Sequence[Merge], attributes: Attributes
    ) -> None:
        """Record an apply before it starts."""
        record = records.read_record(self.copy.place)
        paths = tuple(step.path for step in steps)
        kept = {path: dict(each) for path, each in attributes.items()}
        application = records.Application(self._after, paths, tuple(merges), kept)
        records.write_record(
            self.copy.place, replace(record, applied=(*record.applied, application))
        )

    def _on_end(self, record: records.JournalRecord, ending: records.Ending) -> None:
        """Drop the record of an apply that was undone or rolled back."""
        if (ending == "committed") == (record.kind == "undo"):
            self._drop_application(record.number)

    def _drop_application(self, number: int) -> None:
        record = records.read_record(self.copy.place)
        if len(record.applied) > number:
            records.write_record(self.copy.place, replace(record, applied=record.applied[:number]))


def _summarize(plan: Plan, merges: Sequence[Merge]) -> Applied:
    return Applied(
        paths=tuple(step.path for step in plan.steps),
        merged=tuple(each.path for each in merges),
        kept_directories=tuple(plan.kept_directories),
    )


def _summarize_recoveries(recoveries: Sequence[Recovery]) -> Applied:
    return Applied(
        paths=tuple(sorted({path for each in recoveries for path in each.paths})),
        kept=tuple(kept for each in recoveries for kept in each.kept),
    )
