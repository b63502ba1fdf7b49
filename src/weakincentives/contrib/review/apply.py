"""Apply and undo: the steps of a plan as one change of the original, all or nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from weakincentives.contrib.review.conflicts import (
    ConflictError,
    Step,
    create_conflict,
)
from weakincentives.contrib.review.views import OriginalFilesystem
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.diff import Side
from weakincentives.history import (
    Attributes,
    ChangeConflictError,
    ChangeRecord,
    ChangeRequest,
    Edit,
    Ending,
    EntryState,
    Kept,
    LiveTree,
    change,
    read_attributes,
)

TransactionKind: TypeAlias = Literal["apply", "undo"]
OnEnd: TypeAlias = Callable[[ChangeRecord, Ending], None]


def apply_steps(
    original: OriginalFilesystem,
    steps: Sequence[Step],
    sides: tuple[Side, Side],
    *,
    kind: TransactionKind,
    place: Path,
    number: int,
    attributes: Attributes,
    on_end: OnEnd,
    removed: Attributes | None = None,
) -> tuple[Kept, ...]:
    """Execute all steps or none; return concurrent changes that were left alone.

    Args:
        original: The directory.
        steps: They lead from the first of the `sides` to the second.
        sides: The state that the copy started with, and the new one.
        kind: Whether it is an apply or an undo.
        place: The working copy.
        number: Which apply of the copy it is.
        attributes: The extended attributes of files that are created again.
        on_end: Called before the record of the change is removed.
        removed: The extended attributes of files that are removed, as an undo restores them.

    Raises:
        ConflictError: A path changed meanwhile; everything was rolled back except for
            concurrent saves.
    """
    request = ChangeRequest(
        [_edit(step, sides) for step in steps],
        sides[1].open,
        kind=kind,
        place=str(place),
        number=number,
        attributes=attributes,
        removed_attributes=removed,
    )
    try:
        return change(original.directory, request, on_end=on_end).kept
    except ChangeConflictError as error:
        raise _explain(error, steps) from error


def collect_attributes(
    original: OriginalFilesystem, steps: Sequence[Step]
) -> dict[str, dict[str, bytes]]:
    """Return the extended attributes of files to be removed, so that an undo restores them."""
    tree = LiveTree(original.directory)
    removed = [
        step.path
        for step in steps
        if step.now is not None and step.now.is_file and not (step.wanted and step.wanted.is_file)
    ]
    found = {path: read_attributes(tree, path) for path in removed}
    return {path: attributes for path, attributes in found.items() if attributes}


def _edit(step: Step, sides: tuple[Side, Side]) -> Edit:
    """Return what a step does; the expected state is that of the copy, not the one just seen."""
    if step.now is None or step.now.is_directory:
        before = _describe(step.now, sides[0])
    else:
        before = _describe(step.change.before, sides[0])
    return Edit(step.path, before, _describe(step.wanted, sides[1]))


def _describe(found: FileStat | None, state: Side) -> EntryState:
    """Return the state of `found`; a file is read only if its blob id is unknown."""
    if found is None:
        return EntryState()
    if found.link_target is not None:
        return EntryState("symlink", target=found.link_target)
    if not found.is_file:
        return EntryState(found.kind, found.permissions)
    return EntryState("file", found.permissions, found.size_bytes, state.blob_id(found))


def _explain(error: ChangeConflictError, steps: Sequence[Step]) -> ConflictError:
    """Return the conflict at a path, or below a directory that is changed for it."""
    here = [step for step in steps if step.path == error.path]
    below = [step for step in steps if step.path.startswith(f"{error.path}/")]
    return ConflictError([create_conflict((here or below)[0].change, error.fact)], kept=error.kept)
