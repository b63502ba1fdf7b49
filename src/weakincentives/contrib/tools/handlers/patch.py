"""`apply_patch`: several files changed by one patch, all or none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.changes import Changes, all_or_none
from weakincentives.contrib.tools.handlers.errors import (
    ensure_creatable,
    ensure_not_read_only,
    ensure_short_enough,
    ensure_storable,
    explain_errors,
    similar_paths,
)
from weakincentives.contrib.tools.handlers.render import (
    count_text,
    difference,
    format_path,
    join_words,
    match_note,
    message,
    rest_hint,
)
from weakincentives.contrib.tools.handlers.write import (
    decode_text,
    encode_text,
    ensure_text,
    file_bytes,
)
from weakincentives.contrib.tools.patching import PatchError, PlannedChange, plan_patch
from weakincentives.contrib.tools.requests import ApplyPatchParams
from weakincentives.contrib.tools.results import EditFileResult, FileChange
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


def apply_patch(request: ApplyPatchParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Change several files by one patch; if a part of it fails, nothing is changed."""
    ensure_storable(request.patch)
    if not request.dry_run:
        ensure_not_read_only(context, "")
    with all_or_none(context.filesystem) as changes:
        steps = _steps(request.patch, context)
        for step in sorted(steps, key=attrgetter("order")):
            if not request.dry_run:
                with explain_errors(context, step.path):
                    _apply(step, changes)
    return _result(steps, context, applied=not request.dry_run)


def _steps(patch: str, context: HandlerContext) -> list[_Step]:
    """Return what a patch does; nothing is changed yet."""
    read: dict[str, bytes | None] = {}

    def reader(path: str) -> str | None:
        data = read[path] = file_bytes(context, path)
        return None if data is None else decode_text(data)

    try:
        planned = plan_patch(patch, reader, resolve=context.resolve_path)
    except PatchError as error:
        raise _with_near_names(error, context) from None
    gone = {each.path for each in planned if each.kind in {"delete", "move"}}
    return [_step(each, context, read[each.path], gone) for each in planned]


def _step(
    planned: PlannedChange, context: HandlerContext, old: bytes | None, gone: Collection[str]
) -> _Step:
    new_path = planned.new_path or planned.path
    if planned.kind == "delete":
        return _Step(planned, new_path, old, None)
    text = planned.content or ""
    new = encode_text(text)
    ensure_creatable(context, new_path, gone=gone)
    ensure_short_enough(
        context, new_path, len(text) - (0 if old is None else len(decode_text(old)))
    )
    if old is not None and old != new:
        ensure_text(context, planned.path, old)
    return _Step(planned, new_path, old, new)


def _with_near_names(error: PatchError, context: HandlerContext) -> PatchError:
    near = () if error.missing is None else similar_paths(context, error.missing)
    if not near:
        return error
    meant = join_words(repr(format_path(each)) for each in near)
    return PatchError(f"{error}\nDid you mean {meant}?")


def _apply(step: _Step, changes: Changes) -> None:
    if step.new is None:
        changes.delete(step.path)
    elif step.old is None:
        changes.create(step.path, decode_text(step.new))
    else:
        if step.source is not None:
            changes.move(step.source, step.path)
        if step.new != step.old:
            changes.replace(step.path, step.new)


def _result(
    steps: Sequence[_Step], context: HandlerContext, *, applied: bool
) -> ToolResult[EditFileResult]:
    compared = [difference(step.path, step.old, step.new, source=step.source) for step in steps]
    value = EditFileResult(
        tuple(map(_change, steps)),
        "".join(each.text for each in compared),
        sum(each.added for each in compared),
        sum(each.removed for each in compared),
        max((step.planned.match_level for step in steps), key=lambda level: level.rank),
        sum(each.places for each in compared),
        applied=applied,
    )
    left = [each.path for each in value.changes if each.kind != "removed"]
    rest = rest_hint(context, left[0], applied=applied) if left else None
    text = message(context, _head(value), value.diff, rest=rest)
    return ToolResult(text, value, exclude_value_from_context=True)


def _change(step: _Step) -> FileChange:
    size = None if step.new is None else len(step.new)
    return FileChange(step.path, _KINDS[step.planned.kind], step.source, size)


def _head(value: EditFileResult) -> list[str]:
    lines = f"{count_text(value.added, 'line')} added, {value.removed} removed"
    files = count_text(len(value.changes), "file")
    text = f"Patched {files}: {lines}"
    if not value.applied:
        text = f"Dry run, nothing was changed: {files} would be patched: {lines}"
    return [text, *map(_listed, value.changes), match_note(value.match_level)]


def _listed(change: FileChange) -> str:
    source = "" if change.source is None else f"{format_path(change.source)} -> "
    return f"{_LETTERS[change.kind]} {source}{format_path(change.path)}"
