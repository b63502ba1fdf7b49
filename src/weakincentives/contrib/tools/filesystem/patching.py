"""`apply_patch`: several files changed by one patch, all or none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from weakincentives.contrib.tools.filesystem.changing import Changes, all_or_none
from weakincentives.contrib.tools.filesystem.near_names import near_names
from weakincentives.contrib.tools.filesystem.refusals import (
    explained,
    refuse_long,
    refuse_new,
    refuse_read_only,
    refuse_unstorable,
)
from weakincentives.contrib.tools.filesystem.showing import (
    difference,
    message,
    overlooked,
    rest_hint,
)
from weakincentives.contrib.tools.filesystem.texts import (
    decoded,
    encoded,
    file_bytes,
    refuse_binary,
)
from weakincentives.contrib.tools.filesystem.wording import counted, listed, named
from weakincentives.contrib.tools.patch import PatchError, PlannedChange, plan_patch
from weakincentives.contrib.tools.requests import ApplyPatchParams
from weakincentives.contrib.tools.results import EditFileResult, FileChange
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem import ChangeKind
from weakincentives.prompt import ToolResult

_KINDS: Mapping[str, ChangeKind] = {
    "add": "added",
    "update": "modified",
    "move": "renamed",
    "delete": "removed",
}
_LETTERS = {"added": "A", "modified": "M", "renamed": "R", "removed": "D"}
# a file that is gone makes room for a directory of its name, so what goes goes first
_ORDER = ("delete", "move", "update", "add")


@dataclass(frozen=True, slots=True)
class _Step:
    """What is done to one file: from `old` to `new`, which are None where it is not there."""

    planned: PlannedChange
    path: str
    old: bytes | None
    new: bytes | None

    @property
    def source(self) -> str | None:
        """Where it was, if it is moved."""
        return self.planned.path if self.planned.path != self.path else None

    @property
    def order(self) -> int:
        """When it is its turn."""
        return _ORDER.index(self.planned.kind)


def apply_patch(request: ApplyPatchParams, bench: Workbench) -> ToolResult[EditFileResult]:
    """Change several files by one patch; if a part of it fails, nothing is changed."""
    refuse_unstorable(request.patch)
    if not request.dry_run:
        refuse_read_only(bench, "")
    with all_or_none(bench.filesystem) as changes:
        steps = _steps(request.patch, bench)
        for step in sorted(steps, key=attrgetter("order")):
            if not request.dry_run:
                with explained(bench, step.path):
                    _apply(step, changes)
    return _result(steps, bench, applied=not request.dry_run)


def _steps(patch: str, bench: Workbench) -> list[_Step]:
    """Return what a patch does; nothing is changed yet."""
    read: dict[str, bytes | None] = {}

    def reader(path: str) -> str | None:
        data = read[path] = file_bytes(bench, path)
        return None if data is None else decoded(data)

    try:
        planned = plan_patch(patch, reader, resolve=bench.path)
    except PatchError as error:
        raise _with_near_names(error, bench) from None
    gone = {each.path for each in planned if each.kind in {"delete", "move"}}
    return [_step(each, bench, read[each.path], gone) for each in planned]


def _step(
    planned: PlannedChange, bench: Workbench, old: bytes | None, gone: Collection[str]
) -> _Step:
    new_path = planned.new_path or planned.path
    if planned.kind == "delete":
        return _Step(planned, new_path, old, None)
    text = planned.content or ""
    new = encoded(text)
    refuse_new(bench, new_path, gone=gone)
    refuse_long(bench, new_path, len(text) - (0 if old is None else len(decoded(old))))
    if old is not None and old != new:
        refuse_binary(bench, planned.path, old)
    return _Step(planned, new_path, old, new)


def _with_near_names(error: PatchError, bench: Workbench) -> PatchError:
    near = () if error.missing is None else near_names(bench, error.missing)
    if not near:
        return error
    meant = listed(repr(named(each)) for each in near)
    return PatchError(f"{error}\nDid you mean {meant}?")


def _apply(step: _Step, changes: Changes) -> None:
    if step.new is None:
        changes.delete(step.path)
    elif step.old is None:
        changes.create(step.path, decoded(step.new))
    else:
        if step.source is not None:
            changes.move(step.source, step.path)
        if step.new != step.old:
            changes.replace(step.path, step.new)


def _result(
    steps: Sequence[_Step], bench: Workbench, *, applied: bool
) -> ToolResult[EditFileResult]:
    compared = [difference(step.path, step.old, step.new, source=step.source) for step in steps]
    value = EditFileResult(
        tuple(map(_change, steps)),
        "".join(each.text for each in compared),
        sum(each.added for each in compared),
        sum(each.removed for each in compared),
        max((step.planned.grade for step in steps), key=lambda grade: grade.rank),
        sum(each.places for each in compared),
        applied=applied,
    )
    left = [each.path for each in value.changes if each.kind != "removed"]
    rest = rest_hint(bench, left[0], applied=applied) if left else None
    text = message(bench, _head(value), value.diff, rest=rest)
    return ToolResult(text, value, exclude_value_from_context=True)


def _change(step: _Step) -> FileChange:
    size = None if step.new is None else len(step.new)
    return FileChange(step.path, _KINDS[step.planned.kind], step.source, size)


def _head(value: EditFileResult) -> list[str]:
    lines = f"{counted(value.added, 'line')} added, {value.removed} removed"
    files = counted(len(value.changes), "file")
    text = f"Patched {files}: {lines}"
    if not value.applied:
        text = f"Dry run, nothing was changed: {files} would be patched: {lines}"
    return [text, *map(_listed, value.changes), overlooked(value.grade)]


def _listed(change: FileChange) -> str:
    source = "" if change.source is None else f"{named(change.source)} -> "
    return f"{_LETTERS[change.kind]} {source}{named(change.path)}"
