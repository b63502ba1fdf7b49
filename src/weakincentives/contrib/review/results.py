"""The results of a review: of an apply, an undo or a recovery, for a commit, and as a patch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.contrib.review.conflicts import Conflict, Plan, is_directory
from weakincentives.contrib.review.merge import Merge
from weakincentives.filesystem import Diff, ReadableFilesystem
from weakincentives.history import Kept, Recovery
from weakincentives.posix import parents_of, store_file, write_all

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
    """Changes of others that were left alone, and where the other versions are."""
    created: tuple[str, ...] = ()
    """Those of the paths that did not exist before."""
    removed: tuple[str, ...] = ()
    """Those of the paths that do not exist any more."""
    directories: tuple[str, ...] = ()
    """Those of the paths that are, or were, directories."""

    def __str__(self) -> str:
        """Return the number of changed paths."""
        number = len(self.paths)
        return f"{number} path{'' if number == 1 else 's'} changed"


@dataclass(frozen=True, slots=True)
class CommitSource:
    """The changes that a git commit is made of."""

    before: ReadableFilesystem
    after: ReadableFilesystem
    paths: tuple[str, ...]
    has_pending: bool
    """Whether some of them were not applied yet."""


def summarize(plan: Plan, merges: Sequence[Merge]) -> Applied:
    """Return the result of a plan that was carried out."""
    return Applied(
        paths=tuple(step.path for step in plan.steps),
        merged=tuple(each.path for each in merges),
        kept_directories=tuple(plan.kept_directories),
        created=tuple(step.path for step in plan.steps if step.now is None),
        removed=tuple(step.path for step in plan.steps if step.wanted is None),
        directories=tuple(
            step.path for step in plan.steps if is_directory(step.wanted or step.now)
        ),
    )


def summarize_recoveries(recoveries: Sequence[Recovery]) -> Applied:
    """Return the result of recoveries."""
    return Applied(
        paths=tuple(sorted({path for each in recoveries for path in each.paths})),
        kept=tuple(kept for each in recoveries for kept in each.kept),
    )


def describe_left(conflicts: Sequence[Conflict]) -> list[Kept]:
    """Return what an undo leaves alone; not the directories above it, which it keeps as well."""
    above = {parent for each in conflicts for parent in parents_of(each.path)}
    return [
        Kept(
            each.path,
            f"was left as it is: {each.in_original} after the apply",
            can_merge=each.can_merge,
        )
        for each in conflicts
        if each.path not in above
    ]


def write_patch(changes: Diff, target: Path) -> Path:
    """Write changes to a new or existing file, as a patch for `git apply`.

    Raises:
        ValueError: Nothing was changed, or nothing that a patch can express.
    """
    if not changes:
        raise ValueError("Nothing was changed, so there is no patch to save")
    if not any(chunk.startswith(b"diff --git ") for chunk in changes.patch_chunks()):
        facts = "; ".join(map(str, changes.omissions[:_MAX_OMISSIONS]))
        raise ValueError(f"A patch cannot express any of the changes: {facts}")

    def fill(descriptor: int) -> None:
        for chunk in changes.patch_chunks():
            write_all(descriptor, chunk)

    directory = os.open(target.parent, _DIRECTORY_FLAGS)
    try:
        store_file(directory, target.name, fill, durable=True)
    finally:
        os.close(directory)
    return target
