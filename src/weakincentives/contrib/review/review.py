"""The review of what was done in a working copy: shown, then applied, saved or discarded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from weakincentives.contrib.review.applying import apply_steps, original_of
from weakincentives.contrib.review.conflicts import (
    Conflict,
    ConflictError,
    Plan,
    Step,
    selected,
)
from weakincentives.contrib.review.copying import remove_place
from weakincentives.contrib.review.exact import ExactFilesystem
from weakincentives.contrib.review.parts import PartialFilesystem
from weakincentives.contrib.review.records import (
    Application,
    WorkingCopy,
    exclusion,
    opened,
    read_record,
    write_record,
)
from weakincentives.filesystem import (
    Change,
    Diff,
    FilesystemSnapshot,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.paths import parents_of
from weakincentives.filesystem.staging import store_file, write_all
from weakincentives.filesystem.states import State

_GIT = ".git"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Applied:
    """What was brought into the original, or taken back: the paths that changed there."""

    paths: tuple[str, ...]

    def __str__(self) -> str:
        """Return how many there are."""
        return f"{len(self.paths)} paths changed"


class Review:
    """What was changed in a working copy, as it was when it was first looked at.

    Nothing is done to the original but by `apply` and `undo`. What was changed inside of
    `.git`, or where nothing was copied from, and pipes and the like, is withheld: it is
    no part of the difference, and is applied only if asked for.
    """

    def __init__(self, copy: WorkingCopy, *, with_git: bool = False) -> None:
        """Review `copy`; `with_git` lets changes inside of `.git` be applied too."""
        self.copy = copy
        self._with_git = with_git
        self._filter = exclusion(copy.exclude)
        self._files: ExactFilesystem | None = opened(copy)

    @cached_property
    def diff(self) -> Diff:
        """What was changed and is not withheld; `refresh` looks again."""
        return self._compared(renames=True)

    @cached_property
    def withheld(self) -> tuple[Change, ...]:
        """What was changed and is not applied, sorted by path."""
        return tuple(each for each in self._found if self._hides(each.path) or _is_special(each))

    def refresh(self) -> None:
        """Look at the copy again: somebody has worked in it."""
        for name in ("diff", "withheld", "_after", "_found", "_changes"):
            self.__dict__.pop(name, None)

    def conflicts(self, paths: Sequence[str] | None = None) -> tuple[Conflict, ...]:
        """Return what was changed on both sides, at and below `paths`; the original is read."""
        with original_of(self.copy.original) as original:
            return tuple(self._plan(original, self._forward(paths)).conflicts)

    def apply(self, paths: Sequence[str] | None = None) -> Applied:
        """Bring the changes into the original, or those at and below `paths`: all or none.

        Only what was changed in the copy is touched. What the original has already is
        left as it is.

        Raises:
            ConflictError: Something was changed on both sides; the original is as it was.
            ValueError: Nothing was changed at one of the paths.
        """
        changes = self._forward(paths)
        with original_of(self.copy.original) as original:
            plan = self._plan(original, changes)
            if plan.conflicts:
                raise ConflictError(plan.conflicts)
            self._remember(plan.steps)
            try:
                apply_steps(original, plan.steps, changes.after)
            except (Exception, KeyboardInterrupt):
                self._forget()
                raise
        return _applied(plan.steps)

    def undo(self) -> Applied:
        """Take back what was applied last; what was changed before and since stays.

        Raises:
            ConflictError: What was applied has been changed since; nothing was taken back.
            ValueError: Nothing was applied.
        """
        applied = read_record(self.copy.place).applied
        if not applied:
            raise ValueError(f"Nothing was applied to {str(self.copy.original)!r}")
        changes = self._backward(applied[-1])
        with original_of(self.copy.original) as original:
            plan = self._plan(original, changes)
            if plan.conflicts:
                raise ConflictError(plan.conflicts)
            apply_steps(original, plan.steps, changes.after)
        self._forget()
        return _applied(plan.steps)

    def save_patch(self, path: str | os.PathLike[str]) -> Path:
        """Write the difference as a patch that `git apply` takes, in one step.

        Raises:
            ValueError: Nothing was changed.
        """
        if not self.diff:
            raise ValueError("Nothing was changed, so there is no patch to save")
        target = Path(path).absolute()

        def fill(descriptor: int) -> None:
            for chunk in self.diff.patch_chunks():
                write_all(descriptor, chunk)

        directory = os.open(target.parent, _DIRECTORY)
        try:
            store_file(directory, target.name, fill, durable=True)
        finally:
            os.close(directory)
        return target

    def discard(self) -> None:
        """Remove the copy with its history: nothing can be applied or undone any more."""
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
        return self._compared(renames=False).entries if self.withheld else self._found

    def _compared(self, *, renames: bool) -> Diff:
        sides = self._view(self.copy.base), self._view(self._after)
        if self.withheld:
            before, after = (PartialFilesystem(side, self._hides) for side in sides)
            return diff(before, after, renames=renames)
        return diff(*sides, renames=renames)

    @property
    def _opened(self) -> ExactFilesystem:
        if self._files is None:
            raise ValueError(f"Review is closed: {str(self.copy.place)!r}")
        return self._files

    def _hides(self, path: str) -> bool:
        if not self._with_git and any(each.casefold() == _GIT for each in path.split("/")):
            return True
        return any(not self._filter.wants(each) for each in (*parents_of(path), path))

    def _view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return self._opened.view(snapshot)

    def _forward(self, paths: Sequence[str] | None) -> "_Way":
        before, after = self._view(self.copy.base), self._view(self._after)
        return _Way(selected(self._changes, paths), State(before), State(after))

    def _backward(self, applied: Application) -> "_Way":
        before, after = self._view(applied.after), self._view(self.copy.base)
        wanted = set(applied.paths)
        found = diff(before, after, renames=False).entries
        chosen = [each for each in found if each.path in wanted]
        return _Way(chosen, State(before), State(after))

    def _plan(self, original: ExactFilesystem, way: "_Way") -> Plan:
        return Plan(way.changes, State(original), way.before, way.after)

    def _remember(self, steps: Sequence[Step]) -> None:
        """Take note of what is about to be applied; by content `undo` finds out if it was."""
        record = read_record(self.copy.place)
        application = Application(self._after, tuple(step.path for step in steps))
        write_record(self.copy.place, replace(record, applied=(*record.applied, application)))

    def _forget(self) -> None:
        record = read_record(self.copy.place)
        write_record(self.copy.place, replace(record, applied=record.applied[:-1]))


@dataclass(frozen=True, slots=True)
class _Way:
    """Changes that lead from one state to another."""

    changes: Sequence[Change]
    before: State
    after: State


def _is_special(change: Change) -> bool:
    return any(side.kind == "special" for side in change.sides)


def _applied(steps: Sequence[Step]) -> Applied:
    return Applied(tuple(sorted(step.path for step in steps)))
