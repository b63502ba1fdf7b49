"""`apply_patch`: change several files with one patch, all or none."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import edit, errors, render
from weakincentives.contrib.tools.handlers.suggestions import similar_paths
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
# deletes first: a removed file makes room for a directory of the same name
_ORDER = ("delete", "move", "update", "add")


@dataclass(frozen=True, slots=True)
class _PatchStep:
    """The change of one file from `old` to `new`; None means that the file does not exist."""

    planned: PlannedChange
    path: str
    old: bytes | None
    new: bytes | None

    @property
    def source(self) -> str | None:
        """The old path of a moved file; None otherwise."""
        return self.planned.path if self.planned.path != self.path else None

    @property
    def order(self) -> int:
        return _ORDER.index(self.planned.kind)


def apply_patch(request: ApplyPatchParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Apply a patch; if any part of it fails, nothing is changed."""
    errors.ensure_encodable(request.patch)
    if not request.dry_run:
        errors.ensure_writable(context, "")

    def attempt() -> list[_PatchStep]:
        with edit.all_or_none(context.filesystem) as changes:
            steps = _plan_steps(request.patch, context)
            for step in sorted(steps, key=attrgetter("order")):
                if not request.dry_run:
                    with errors.explain_errors(context, step.path):
                        _apply(step, changes)
        return steps

    return _make_result(edit.retry_stale(attempt), context, applied=not request.dry_run)


def _plan_steps(patch: str, context: HandlerContext) -> list[_PatchStep]:
    """Return the steps of a patch, without changing anything."""
    read: dict[str, bytes | None] = {}

    def reader(path: str) -> str | None:
        data = read[path] = edit.read_for_edit(context, path)
        return None if data is None else edit.decode_text(data)

    try:
        planned = plan_patch(patch, reader, resolve=context.resolve_path)
    except PatchError as error:
        raise _add_suggestions(error, context) from None
    gone = {each.path for each in planned if each.kind in {"delete", "move"}}
    return [_plan_step(each, context, read[each.path], gone) for each in planned]


def _plan_step(
    planned: PlannedChange, context: HandlerContext, old: bytes | None, gone: Collection[str]
) -> _PatchStep:
    new_path = planned.new_path or planned.path
    if planned.kind == "delete":
        return _PatchStep(planned, new_path, old, None)
    text = planned.content or ""
    new = edit.encode_text(text)
    errors.ensure_creatable(context, new_path, gone=gone)
    added = len(text) - (0 if old is None else len(edit.decode_text(old)))
    errors.ensure_within_limit(context, new_path, added, is_edit=old is not None)
    if old is not None and old != new:
        edit.ensure_text(context, planned.path, old)
    return _PatchStep(planned, new_path, old, new)


def _add_suggestions(error: PatchError, context: HandlerContext) -> PatchError:
    near = () if error.missing is None else similar_paths(context, error.missing)
    if not near:
        return error
    suggestions = render.join_words(repr(render.format_path(each)) for each in near)
    return PatchError(f"{error}\nDid you mean {suggestions}?")


def _apply(step: _PatchStep, changes: edit.Changes) -> None:
    if step.new is None:
        changes.delete(step.path)
    elif step.old is None:
        changes.create(step.path, edit.decode_text(step.new))
    else:
        if step.source is not None:
            changes.move(step.source, step.path)
        if step.new != step.old:
            changes.replace(step.path, step.new, step.old)


def _make_result(
    steps: Sequence[_PatchStep], context: HandlerContext, *, applied: bool
) -> ToolResult[EditFileResult]:
    compared = [
        render.make_diff(step.path, step.old, step.new, source=step.source) for step in steps
    ]
    value = EditFileResult(
        tuple(map(_to_change, steps)),
        "".join(each.text for each in compared),
        sum(each.added for each in compared),
        sum(each.removed for each in compared),
        max((step.planned.match_level for step in steps), key=lambda level: level.rank),
        sum(each.blocks for each in compared),
        applied=applied,
    )
    left = [each.path for each in value.changes if each.kind != "removed"]
    text = render.render_change(
        context, _render_head(value), value.diff, path=left[0] if left else None, applied=applied
    )
    return ToolResult(text, value, exclude_value_from_context=True)


def _to_change(step: _PatchStep) -> FileChange:
    size = None if step.new is None else len(step.new)
    return FileChange(step.path, _KINDS[step.planned.kind], step.source, size)


def _render_head(value: EditFileResult) -> list[str]:
    lines = f"{render.format_count(value.added, 'line')} added, {value.removed} removed"
    files = render.format_count(len(value.changes), "file")
    text = f"Patched {files}: {lines}"
    if not value.applied:
        text = f"Dry run, nothing was changed. {files} would be patched: {lines}"
    return [text, *map(_render_entry, value.changes), render.match_note(value.match_level)]


def _render_entry(change: FileChange) -> str:
    source = "" if change.source is None else f"{render.format_path(change.source)} -> "
    return f"{_LETTERS[change.kind]} {source}{render.format_path(change.path)}"
