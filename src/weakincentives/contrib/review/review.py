"""Review of a working copy: diff, conflicts, apply, undo, save as a patch, discard."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.contrib.review.apply import (
    Applied,
    ApplyHistory,
    CommitSource,
    describe_left,
    summarize,
    summarize_recoveries,
)
from weakincentives.contrib.review.conflicts import (
    ChangeSet,
    Conflict,
    ConflictError,
    Plan,
    Renames,
    find_renames,
    select_changes,
)
from weakincentives.contrib.review.hunks import Hunk, HunkSource
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.original import Interrupted, Original, open_original
from weakincentives.contrib.review.removal import remove_copy, remove_unused
from weakincentives.contrib.review.views import LayeredFilesystem, ReviewFilter, Sides, Version
from weakincentives.filesystem import (
    Change,
    Diff,
    FilesystemSnapshot,
    HostFilesystem,
    Omission,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.diff import Side
from weakincentives.history import Attributes, Kept, Recovery
from weakincentives.posix import CloseOnExit, open_directory, store_file, write_all

_MAX_OMISSIONS = 5


class Review(CloseOnExit):
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
        self._files: HostFilesystem | None = records.open_files(copy)
        self.applies: ApplyHistory = ApplyHistory(copy, self._view, self._filter)

    @cached_property
    def diff(self) -> Diff:
        """The offered changes that were not applied yet; `refresh` recomputes them."""
        return diff(*self._sides).on(self._accepted)

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
        return changes.only(self._filter.offers)

    def refresh(self) -> None:
        """Read the copy again after more work in it."""
        vars(self).pop("_after", None)
        self._forget_changes()

    def conflicts(
        self, paths: Sequence[str] | None = None, *, hunks: Sequence[Hunk] = ()
    ) -> tuple[Conflict, ...]:
        """Return what changed on both sides, of what `apply` would apply with these arguments.

        Raises:
            ApplyInterruptedError: An apply was interrupted; see `recover`.
        """
        with self._plan(paths, hunks) as plan:
            return plan.explain_conflicts()

    def merges(self, paths: Sequence[str] | None = None) -> tuple[Merge, ...]:
        """Return the conflicts that a three-way merge resolves, with the merged content."""
        with self._plan(paths) as plan:
            return tuple(plan.find_merges())

    @contextmanager
    def _plan(self, paths: Sequence[str] | None, hunks: Sequence[Hunk] = ()) -> Generator[Plan]:
        """Compare changes with the original; read-only."""
        change_set = self._choose_changes(paths, hunks)
        with open_original(self.copy.original, read_only=True) as original:
            original.ensure_not_interrupted()
            yield Plan(change_set, original)

    @property
    def applied(self) -> tuple[str, ...]:
        """The paths that were applied and not undone, sorted."""
        return tuple(sorted({path for each in self.applies.entries for path in each.paths}))

    @property
    def interrupted(self) -> Interrupted | None:
        """The apply or undo that was interrupted in the original, by any copy; read-only."""
        with open_original(self.copy.original, read_only=True) as original:
            return original.interrupted

    def recover(self) -> Applied:
        """Roll back an interrupted `apply` or `undo` of this copy; `apply` does it too.

        A path is rolled back only if it still has exactly what the transaction put there.
        Later saves are left alone and reported in `kept`. A transaction that had committed
        stays.

        Raises:
            ApplyInterruptedError: The interrupted transaction belongs to another copy.
        """
        with open_original(self.copy.original) as original:
            found = original.recover(self.copy.place, self.applies.end)
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

    def edit(self, hunk: Hunk, content: bytes) -> Hunk | None:
        """Return a hunk that somebody edited in unified diff format; None if nothing is left.

        Raises:
            ValueError: Lines of the old file are not as they were, or the hunk is outdated.
        """
        return self._hunk_source.edit(hunk, content)

    def apply(
        self, paths: Sequence[str] | None = None, *, hunks: Sequence[Hunk] = (), merge: bool = False
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
            plan = Plan(self._choose_changes(paths, hunks), original)
            plan = plan.merge() if merge else plan
            if plan.conflicts:
                raise ConflictError(plan.explain_conflicts())
            applied = self._apply(plan, contents)
        self._forget_changes()
        return applied

    def _apply(self, plan: Plan, contents: dict[str, Version]) -> Applied:
        """Apply a plan without conflicts; `contents` are the files with only some hunks."""
        removed = _removed_attributes(plan)
        entry = records.Application(
            self._after,
            paths=tuple(each.path for each in plan.edits),
            merges=tuple(plan.merges),
            attributes={path: dict(each) for path, each in removed.items() if each},
            accepted=tuple(each.path for each in plan.change_set.changes),
            contents=contents,
            is_settled=not plan.edits,
        )
        number = self.applies.begin(entry) if entry.accepted else 0
        if not plan.edits:
            return summarize(plan)
        moved = _moved_attributes(plan, lambda path: self._renames.source(path))
        return self.applies.carry_out(plan, number, moved)

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
            for number in reversed(range(len(self.applies.entries))):
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
        original: Original,
        number: int,
        left: dict[str, Kept],
        *,
        is_partial: bool,
        merge: bool,
    ) -> Applied | None:
        """Undo one apply; return None if there was nothing to restore."""
        entry = self.applies.entries[number]
        plan = Plan(self._applied_change_set(number).inverse(), original)
        plan = plan.merge() if merge else plan
        if plan.conflicts and not is_partial:
            raise ConflictError(plan.conflicts, kind="undo")
        plan, conflicts = plan.without_conflicts()
        left |= {each.path: each for each in describe_left(conflicts)}
        paths = {each.path for each in conflicts}
        if not plan.edits:
            self.applies.keep(number, paths)
            return None
        if paths:
            number = self.applies.split(number, paths)
        # what a renamed file has now, and what a removed one had
        moved = _moved_attributes(plan, lambda path: plan.change_set.renames().target(path))
        attributes = {**entry.attributes, **moved}
        undone = self.applies.carry_out(plan, number, attributes, kind="undo")
        return replace(undone, kept=(*left.values(), *undone.kept))

    def commit_source(
        self,
        paths: Sequence[str] | None = None,
        hunks: Sequence[Hunk] = (),
        *,
        with_applied: bool = True,
    ) -> CommitSource:
        """Return the chosen changes, and those that were applied but not committed."""
        history, count = self.applies, len(self.applies.entries)
        start = history.committed_count if with_applied else count
        applied = [path for each in history.entries[start:] for path in each.accepted]
        after, names = self._accepted, list[str]()
        if self.diff or paths is not None or hunks:
            after, names = self._choose_state(paths, hunks)
        everything = tuple(sorted({*applied, *names}))
        return CommitSource(history.state(start), after, everything, has_pending=bool(names))

    def save_patch(
        self,
        path: str | os.PathLike[str],
        *,
        paths: Sequence[str] | None = None,
        hunks: Sequence[Hunk] = (),
    ) -> Path:
        """Write the diff, or what `apply` would apply of it, as a patch for `git apply`.

        `omissions` lists what the patch cannot express.

        Raises:
            ValueError: Nothing was changed, or nothing that a patch can express.
        """
        changes, target = self._select_diff(paths, hunks), Path(path).absolute()
        if not changes:
            raise ValueError("Nothing was changed, so there is no patch to save")
        if not any(chunk.startswith(b"diff --git ") for chunk in changes.patch_chunks()):
            facts = "; ".join(map(str, changes.omissions[:_MAX_OMISSIONS]))
            raise ValueError(f"A patch cannot express any of the changes: {facts}")

        def fill(descriptor: int) -> None:
            for chunk in changes.patch_chunks():
                write_all(descriptor, chunk)

        with open_directory(target.parent) as directory:
            store_file(directory, target.name, fill, durable=True)
        return target

    def omissions(self, paths: Sequence[str] | None = None) -> tuple[Omission, ...]:
        """Return what a patch leaves out: what git cannot express, and withheld changes."""
        withheld = [Omission(each.path, f"{each.kind}, not offered") for each in self.withheld]
        found = {each.path: each for each in (*withheld, *self._select_diff(paths).omissions)}
        return tuple(found[path] for path in sorted(found))

    def discard(self, *, if_unused: bool = False) -> None:
        """Remove the copy and its history; after that nothing can be applied or undone.

        Args:
            if_unused: Keep a copy in which somebody saved since it was reviewed, or may yet.

        Raises:
            ConflictError: An interrupted apply was rolled back except for later saves; the
                copy still exists.
            CopyInUseError: With `if_unused`: what keeps the copy.
        """
        with suppress(FileNotFoundError, NotADirectoryError):  # the original is gone
            with open_original(self.copy.original, read_only=True) as original:
                is_interrupted = original.has_pending(self.copy.place)
            if is_interrupted:
                with open_original(self.copy.original) as original:
                    self._recover(original)
        if if_unused:
            remove_unused(self.copy, self._open_files, self._after)
        self.close()
        remove_copy(self.copy.place)

    def close(self) -> None:
        """Close the files of the copy; the copy stays."""
        if self._files is not None:
            self._files.close()
            self._files = None

    # --- steps ---

    @cached_property
    def _after(self) -> FilesystemSnapshot:
        return self._open_files.snapshot(tag="reviewed state")

    @cached_property
    def _accepted(self) -> ReadableFilesystem:
        """The copied state with what was applied since."""
        return self.applies.state()

    @cached_property
    def _all_changes(self) -> Sequence[Change]:
        """All changes, withheld ones too."""
        return diff(self._accepted, self._view(self._after), renames=False).entries

    @cached_property
    def _sides(self) -> Sides:
        """Both states, without what is withheld."""
        return self._filter.offer(self._accepted, self._view(self._after))

    @cached_property
    def _offered_changes(self) -> Sequence[Change]:
        """The changes that are not withheld."""
        return diff(*self._sides, renames=False).entries

    @cached_property
    def _base(self) -> Side:
        return Side(self._view(self.copy.base))

    @cached_property
    def _renames(self) -> Renames:
        """The renames, including those onto a path that existed before."""
        return find_renames(self.diff, self._offered_changes, *self._sides)

    def _select_diff(self, paths: Sequence[str] | None, hunks: Sequence[Hunk] = ()) -> Diff:
        if hunks:
            return diff(self._accepted, self._choose_state(paths, hunks)[0])
        if paths is None:
            return self.diff
        wanted = {
            each.path
            for each in select_changes(self._offered_changes, paths, lambda: self._renames)
        }
        return self.diff.only(lambda each: each.path in wanted)

    def _forget_changes(self) -> None:
        """Compute the changes again at the next look at them."""
        kept = ("_after", "_base")
        for name, each in vars(Review).items():
            if isinstance(each, cached_property) and name not in kept:
                vars(self).pop(name, None)

    @property
    def _hunk_source(self) -> HunkSource:
        return HunkSource(self.diff, lambda path: bool(self._renames.names(path)))

    @property
    def _open_files(self) -> HostFilesystem:
        if self._files is None:
            raise ValueError(f"Review is closed: {str(self.copy.place)!r}")
        return self._files

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return self._open_files.view(snapshot)

    def _is_reviewed(self, path: str) -> bool:
        return not self._filter.hides(path) and path not in self._skipped

    def _change_set(self, paths: Sequence[str] | None) -> ChangeSet:
        changes = select_changes(self._offered_changes, paths, lambda: self._renames)
        return ChangeSet(changes, *self._sides, self._is_reviewed, lambda: self._renames)

    def _choose_changes(self, paths: Sequence[str] | None, hunks: Sequence[Hunk]) -> ChangeSet:
        """Return the changes at and below `paths`, and of the files in `hunks` only these."""
        if hunks:
            paths = [*(paths or ()), *{each.path for each in hunks}]
        return self._change_set(paths).with_files(self._hunk_source.select(hunks))

    def _choose_state(
        self, paths: Sequence[str] | None, hunks: Sequence[Hunk]
    ) -> tuple[ReadableFilesystem, list[str]]:
        """Return the state after the chosen changes, and their paths."""
        chosen = self._choose_changes(paths, hunks)
        names = [each.path for each in chosen.changes]
        layers = dict.fromkeys(names, Side(chosen.after))
        return LayeredFilesystem(self._accepted, layers), names

    def _applied_change_set(self, number: int) -> ChangeSet:
        entry = self.applies.entries[number]
        sides = self._filter.offer(self.applies.state(number), self._view(entry.after))
        wanted = set(entry.paths)
        changes = [each for each in diff(*sides, renames=False).entries if each.path in wanted]

        def renames() -> Renames:
            named = diff(*sides).only(lambda each: each.path in wanted)
            return find_renames(named, changes, *sides)

        change_set = ChangeSet(changes, *sides, self._is_reviewed, renames)
        return change_set.with_files(entry.contents).with_merges(entry.merges)

    def _recover(self, original: Original) -> list[Recovery]:
        """Recover interrupted transactions; raise if something could not be rolled back."""
        found = original.recover(self.copy.place, self.applies.end)
        self.applies.clean()
        if found:
            self._forget_changes()
        kept = [each for recovery in found for each in recovery.kept]
        if kept:
            raise ConflictError((), kept=kept)
        return found


def _removed_attributes(plan: Plan) -> Attributes:
    """Return the extended attributes of the files that a plan removes, as they were seen."""
    removed = (each for each in plan.edits if each.after.kind != "file")
    return {each.path: each.attributes for each in removed if each.attributes is not None}


def _moved_attributes(plan: Plan, other_name: Callable[[str], str]) -> Attributes:
    """Return the extended attributes of renamed files by the names that they get."""
    removed = _removed_attributes(plan)
    if not any(removed.values()):
        return {}
    names = {each.path: other_name(each.path) for each in plan.edits}
    return {path: removed[name] for path, name in names.items() if name in removed}
