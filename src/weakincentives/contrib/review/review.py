"""Review of a working copy: diff, conflicts, apply, undo, save as a patch, discard."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from weakincentives.contrib.review import records
from weakincentives.contrib.review.apply import TransactionKind, apply_steps, collect_attributes
from weakincentives.contrib.review.conflicts import (
    ChangeSet,
    Conflict,
    ConflictError,
    Plan,
    Renames,
    Step,
    find_renames,
    select_changes,
)
from weakincentives.contrib.review.copy import remove_copy
from weakincentives.contrib.review.history import ApplyHistory
from weakincentives.contrib.review.hunks import Hunk, HunkSource
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.recovery import (
    Interrupted,
    ensure_not_interrupted,
    find_interrupted_apply,
    has_pending,
    open_original,
    recover_all,
)
from weakincentives.contrib.review.results import (
    Applied,
    CommitSource,
    describe_left,
    summarize,
    summarize_recoveries,
    write_patch,
)
from weakincentives.contrib.review.views import (
    FilteredFilesystem,
    LayeredFilesystem,
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
from weakincentives.filesystem.diff import Side
from weakincentives.history import Attributes, Kept, Recovery


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
        self._history = ApplyHistory(copy, self._view, self._filter)

    @cached_property
    def diff(self) -> Diff:
        """The offered changes that were not applied yet; `refresh` recomputes them."""
        return self._compute_diff()

    @cached_property
    def withheld(self) -> tuple[Change, ...]:
        """The changes that are not offered, sorted by path."""
        return tuple(self._filter.withhold(self._all_changes))

    @property
    def state(self) -> FilesystemSnapshot:
        """The state of the copy that is reviewed."""
        return self._after

    def diff_since(self, before: FilesystemSnapshot) -> Diff:
        """Return what changed in the copy since a state of it; only paths that are offered."""
        changes = diff(self._view(before), self._view(self._after))
        return changes.only(lambda each: not self._filter.hides(each.path))

    def refresh(self) -> None:
        """Read the copy again after more work in it."""
        self.__dict__.pop("_after", None)
        self._forget_changes()

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
    def applied(self) -> tuple[str, ...]:
        """The paths that were applied and not undone, sorted."""
        return tuple(sorted({path for each in self._history.entries for path in each.paths}))

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
            found = recover_all(original, self.copy.original, self.copy.place, self._history.end)
        self._forget_changes()
        return summarize_recoveries([each for each in found if not each.is_done])

    def hunks(self, path: str) -> tuple[Hunk, ...]:
        """Return the parts of a change that can be applied one by one.

        Only a text file that was modified has any. A file that was added, removed or renamed,
        a binary file and a link are applied as a whole.
        """
        return self._hunk_source.hunks(path)

    def split(self, hunk: Hunk) -> tuple[Hunk, ...]:
        """Return the smallest parts of a hunk: one for each block of changed lines."""
        return self._hunk_source.split(hunk)

    def apply(
        self,
        paths: Sequence[str] | None = None,
        *,
        hunks: Sequence[Hunk] = (),
        merge: bool = False,
    ) -> Applied:
        """Apply the changes, or those at and below `paths`, to the original: all or nothing.

        Only changed paths are touched, and not those that already have the new state. What was
        applied is no longer part of `diff`. With `merge`, a text file that changed on both sides
        in different places gets both changes.

        Args:
            paths: Files and directories; by default everything, or nothing but `hunks`.
            hunks: Parts of files, as `hunks` returns them; of these files only these parts.
            merge: Whether to merge.

        Raises:
            ConflictError: A path changed on both sides, before or during the apply; the
                original is unchanged except for concurrent saves.
            ValueError: Nothing was changed at one of the paths, or a hunk is outdated.
        """
        with open_original(self.copy.original) as original:
            self._recover(original)
            contents = self._hunk_source.select(hunks)
            change_set = self._choose_changes(paths, hunks)
            plan = change_set.plan(original)
            merges = change_set.merges(original, plan) if merge else []
            if merges:
                change_set = change_set.with_merges(merges)
                plan = change_set.plan(original)
            if plan.conflicts:
                raise ConflictError(change_set.conflicts(original, plan))
            lost = collect_attributes(original, plan.steps)
            entry = records.Application(
                self._after,
                paths=tuple(step.path for step in plan.steps),
                merges=tuple(merges),
                attributes={path: dict(each) for path, each in lost.items()},
                accepted=tuple(each.path for each in change_set.changes),
                contents=contents,
                is_settled=not plan.steps,
            )
            kept = ()
            if plan.steps:
                moved = self._moved_attributes(plan.steps, lost)
                number = self._history.begin(entry)
                kept = self._change(original, change_set, plan, "apply", number, (moved, lost))
            elif change_set.changes:
                self._history.begin(entry)
        self._forget_changes()
        return replace(summarize(plan, merges), kept=kept)

    def undo(self, *, partial: bool = False, merge: bool = False) -> Applied:
        """Undo the last apply; earlier and later changes to other paths stay.

        Args:
            partial: Whether to restore what can be restored if other applied paths were changed
                since; these are left alone and reported in `kept`.
            merge: Whether to keep later changes to other places of a text file.

        Raises:
            ConflictError: An applied path was changed since; nothing was undone.
            ValueError: Nothing was applied.
        """
        with open_original(self.copy.original) as original:
            recovered = self._recover(original)
            # the interrupted transaction was the latest apply, or this undo
            ended = [each for each in recovered if each.is_done == (each.kind == "undo")]
            if any(each.paths for each in ended):
                return summarize_recoveries(ended)
            left: dict[str, Kept] = {}
            for number in reversed(range(len(self._history.entries))):
                undone = self._undo_one(original, number, left, is_partial=partial, merge=merge)
                if undone is not None:
                    self._forget_changes()
                    return undone
        if left:
            raise ConflictError((), kept=tuple(left.values()), kind="undo")
        raise ValueError(
            f"Nothing was applied to {str(self.copy.original)!r} that is not undone already"
        )

    def _undo_one(
        self,
        original: OriginalFilesystem,
        number: int,
        left: dict[str, Kept],
        *,
        is_partial: bool,
        merge: bool,
    ) -> Applied | None:
        """Undo one apply; return None if there was nothing to restore."""
        entry = self._history.entries[number]
        change_set = self._applied_change_set(number).inverse()
        plan = change_set.plan(original)
        merges = change_set.merges(original, plan) if merge else []
        if merges:
            change_set = change_set.with_merges(merges)
            plan = change_set.plan(original)
        if plan.conflicts and not is_partial:
            raise ConflictError(plan.conflicts, kind="undo")
        change_set, plan, conflicts = change_set.without_conflicts(original)
        left |= {each.path: each for each in describe_left(conflicts)}
        paths = {each.path for each in conflicts}
        if not plan.steps:
            self._history.keep(number, paths)
            return None
        if paths:
            number = self._history.split(number, paths)
        kept = self._change(original, change_set, plan, "undo", number, (entry.attributes, None))
        return replace(summarize(plan, merges), kept=(*left.values(), *kept))

    def commit_source(
        self,
        paths: Sequence[str] | None = None,
        hunks: Sequence[Hunk] = (),
        *,
        with_applied: bool = True,
    ) -> CommitSource:
        """Return the chosen changes, and those that were applied but not committed."""
        history, count = self._history, len(self._history.entries)
        start = history.committed_count if with_applied else count
        applied = [path for each in history.entries[start:] for path in each.accepted_paths]
        is_all = paths is None and not hunks
        pending = () if is_all and not self.diff else self._choose_changes(paths, hunks).changes
        names = [each.path for each in pending]
        after: ReadableFilesystem = self._accepted
        if names:
            side = Side(self._choose_changes(paths, hunks).after)
            after = LayeredFilesystem(after, dict.fromkeys(names, side))
        everything = tuple(sorted({*applied, *names}))
        return CommitSource(history.state(start), after, everything, has_pending=bool(names))

    def mark_committed(self, commit: str, staged: Mapping[str, records.IndexChange]) -> None:
        """Record the git commit of what was applied, and what it changed in git's index.

        It is called before the index changes, without a commit, and when the commit is made.
        """
        self._history.mark_committed(commit, staged)

    @property
    def last_staged(self) -> Mapping[str, records.IndexChange]:
        """The entries of git's index that the last commit changed, before and after."""
        entries = self._history.entries
        return entries[-1].staged if entries else {}

    @property
    def last_commit(self) -> str:
        """The git commit that was made of the last apply; empty if there is none."""
        entries = self._history.entries
        return entries[-1].commit if entries else ""

    def save_patch(
        self, path: str | os.PathLike[str], *, paths: Sequence[str] | None = None
    ) -> Path:
        """Write the diff, or the part at and below `paths`, as a patch for `git apply`.

        `omissions` lists what the patch cannot express.

        Raises:
            ValueError: Nothing was changed, or nothing that a patch can express.
        """
        return write_patch(self._select_diff(paths), Path(path).absolute())

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
        remove_copy(self.copy.place)

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
    def _accepted(self) -> ReadableFilesystem:
        """The copied state with what was applied since."""
        return self._history.state()

    @cached_property
    def _all_changes(self) -> Sequence[Change]:
        """All changes, withheld ones too."""
        return diff(self._accepted, self._view(self._after), renames=False).entries

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
        return find_renames(self.diff, changes, self._accepted, self._view(self._after))

    def _select_diff(self, paths: Sequence[str] | None) -> Diff:
        if paths is None:
            return self.diff
        wanted = {
            each.path
            for each in select_changes(self._offered_changes, paths, lambda: self._renames)
        }
        return self.diff.only(lambda each: each.path in wanted)

    def _forget_changes(self) -> None:
        """Compute the changes again at the next look at them."""
        for name in (
            "diff",
            "withheld",
            "_accepted",
            "_all_changes",
            "_offered_changes",
            "_renames",
        ):
            self.__dict__.pop(name, None)

    @property
    def _hunk_source(self) -> HunkSource:
        return HunkSource(self.diff, lambda path: bool(self._renames.names(path)))

    def _compute_diff(self) -> Diff:
        sides = self._accepted, self._view(self._after)
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
        sides = self._accepted, self._view(self._after)
        return ChangeSet(changes, *sides, self._is_reviewed, lambda: self._renames)

    def _choose_changes(self, paths: Sequence[str] | None, hunks: Sequence[Hunk]) -> ChangeSet:
        """Return the changes at and below `paths`, and of the files in `hunks` only these."""
        if hunks:
            paths = [*(paths or ()), *{each.path for each in hunks}]
        return self._change_set(paths).with_contents(self._hunk_source.select(hunks))

    def _applied_change_set(self, number: int) -> ChangeSet:
        entry = self._history.entries[number]
        sides = self._history.state(number), self._view(entry.after)
        wanted = set(entry.paths)
        found = [each for each in diff(*sides, renames=False).entries if each.path in wanted]
        changes = self._filter.offer(found)

        def renames() -> Renames:
            named = diff(*sides).only(lambda each: each.path in wanted)
            return find_renames(named, found, *sides)

        change_set = ChangeSet(changes, *sides, self._is_reviewed, renames)
        return change_set.with_contents(entry.contents).with_merges(entry.merges)

    def _change(
        self,
        original: OriginalFilesystem,
        change_set: ChangeSet,
        plan: Plan,
        kind: TransactionKind,
        number: int,
        attributes: tuple[Attributes, Attributes | None],
    ) -> tuple[Kept, ...]:
        """Carry out a plan; return what was left alone.

        The `attributes` are those of files that are created again, and of those that go.
        """
        return apply_steps(
            original,
            plan.steps,
            (Side(change_set.before), Side(change_set.after)),
            kind=kind,
            place=self.copy.place,
            number=number,
            attributes=attributes[0],
            removed=attributes[1],
            on_end=self._history.end,
        )

    def _moved_attributes(self, steps: Sequence[Step], lost: Attributes) -> Attributes:
        """Return the extended attributes of renamed files by their new names."""
        if not lost:
            return lost
        sources = {step.path: self._renames.source(step.path) for step in steps}
        return {path: lost[source] for path, source in sources.items() if source in lost}

    def _recover(self, original: OriginalFilesystem) -> list[Recovery]:
        """Recover interrupted transactions; raise if something could not be rolled back."""
        found = recover_all(original, self.copy.original, self.copy.place, self._history.end)
        self._history.clean()
        if found:
            self._forget_changes()
        kept = [each for recovery in found for each in recovery.kept]
        if kept:
            raise ConflictError((), kept=kept)
        return found
