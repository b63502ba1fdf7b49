"""`edit_file`: replace text in a file, and say what was replaced."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing import Edit, EditOutcome, MatchLevel, apply_edits
from weakincentives.contrib.tools.editing.model import BOM, Document, unify_line_ends
from weakincentives.contrib.tools.handlers.changes import all_or_none
from weakincentives.contrib.tools.handlers.errors import (
    ensure_creatable,
    ensure_not_read_only,
    ensure_short_enough,
    ensure_storable,
    explain_errors,
    missing_path_error,
)
from weakincentives.contrib.tools.handlers.render import (
    count_text,
    difference,
    format_path,
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
from weakincentives.contrib.tools.requests import (
    CountedEditParams,
    EditFileParams,
    InsertTextParams,
)
from weakincentives.contrib.tools.results import EditFileResult, FileChange
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem.diff import MAX_TEXT
from weakincentives.prompt import ToolResult

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_UTF8 = "The file is not UTF-8; what was put in is UTF-8, and all other bytes are as they were"


def edit_file(request: EditFileParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Replace text in a file; replacing nothing in a file that is missing makes it."""
    return _edited(request.file_path, _edits(request), context, dry_run=request.dry_run)


def edit_counted(request: CountedEditParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Replace text in all of the places that are expected, or nothing if there are others."""
    if request.expected < 1:
        raise ToolValidationError(
            f"The number of places that are expected must be at least 1: {request.expected}"
        )
    is_several = request.expected > 1
    edit = Edit(
        request.old_string, request.new_string, is_several, request.expected if is_several else None
    )
    return _edited(request.file_path, (edit,), context)


def _edited(
    file_path: str, edits: Sequence[Edit], context: HandlerContext, *, dry_run: bool = False
) -> ToolResult[EditFileResult]:
    path = context.resolve_path(file_path)
    for edit in edits:
        ensure_storable(edit.new)
    ensure_short_enough(context, path, sum(len(edit.new) for edit in edits))
    return changed_text(
        context,
        path,
        # no longer than what can be changed in part again
        lambda text: apply_edits(text, edits, room=max(MAX_TEXT - len(text), 0)),
        may_create=not edits[0].old,
        dry_run=dry_run,
    )


def changed_text(
    context: HandlerContext,
    path: str,
    change: Callable[[str], EditOutcome],
    *,
    may_create: bool = False,
    dry_run: bool = False,
    noun: str = "replacement",
) -> ToolResult[EditFileResult]:
    """Change the text of a file, and say what was changed.

    Args:
        context: What it is done with.
        path: The file.
        change: Returns the new text for the old one.
        may_create: A file that is missing is made, as if it were empty.
        dry_run: Only say what would be changed.
        noun: What a change is called.
    """
    if not dry_run:
        ensure_not_read_only(context, path)
    with explain_errors(context, path), all_or_none(context.filesystem) as changes:
        old = _present(context, path, may_create=may_create)
        text = decode_text(old or b"")
        outcome = _noted(text, change(text))
        if not dry_run and old is None:
            changes.create(path, outcome.content)
        elif not dry_run:
            changes.replace(path, encode_text(outcome.content))
    value = _value(path, old, outcome, applied=not dry_run)
    head = [_headline(value, noun), match_note(value.match_level), *value.notes]
    text = message(context, head, value.diff, rest=rest_hint(context, path, applied=not dry_run))
    return ToolResult(text, value, exclude_value_from_context=True)


def _present(context: HandlerContext, path: str, *, may_create: bool) -> bytes | None:
    """Return the bytes of a text that is to be changed; None if it is to be made."""
    old = file_bytes(context, path)
    if old is not None:
        ensure_text(context, path, old)
    elif may_create:
        ensure_creatable(context, path)
    else:
        raise missing_path_error(context, path, what="file")
    return old


def _edits(request: EditFileParams) -> tuple[Edit, ...]:
    """Return what is to be replaced, however it was said."""
    single = request.old_string is not None or request.new_string is not None
    if single and request.edits:
        raise ToolValidationError(
            "Both one replacement and a list of them were given; send one or the other"
        )
    if request.edits:
        return tuple(
            Edit(each.old_string, each.new_string, each.replace_all or request.replace_all)
            for each in request.edits
        )
    if request.old_string is None:
        raise ToolValidationError(
            "The text to replace is not given; send it as it is in the file, and the text"
            " to put in its place"
        )
    if request.new_string is None:
        raise ToolValidationError(
            "The text to put in place of the old one is not given; send an empty text to remove it"
        )
    return (Edit(request.old_string, request.new_string, request.replace_all),)


def _noted(text: str, outcome: EditOutcome) -> EditOutcome:
    """Return the outcome with a note if a text in another encoding now has UTF-8 in it."""
    put = "".join(outcome.content[start:end] for start, end in outcome.new_spans)
    if not _SURROGATE.search(text) or _SURROGATE.sub("", put).isascii():
        return outcome
    return replace(outcome, notes=(*outcome.notes, _NOT_UTF8))


def _value(path: str, old: bytes | None, outcome: EditOutcome, *, applied: bool) -> EditFileResult:
    new = encode_text(outcome.content)
    compared = difference(path, old, new)
    kind = "added" if old is None else "modified"
    return EditFileResult(
        (FileChange(path, kind, size_bytes=len(new)),),
        compared.text,
        compared.added,
        compared.removed,
        outcome.match_level,
        outcome.replacements,
        applied=applied,
        notes=outcome.notes,
    )


def _headline(value: EditFileResult, noun: str) -> str:
    name = format_path(value.changes[0].path)
    made = value.changes[0].kind == "added"
    lines = count_text(value.added, "line")
    if not made:
        places = count_text(value.replacements, noun)
        lines = f"{places}, {lines} added, {value.removed} removed"
    if not value.applied:
        would = "created" if made else "edited"
        return f"Dry run, nothing was changed: {name} would be {would}: {lines}"
    return f"{'Created' if made else 'Edited'} {name}: {lines}"


def insert_text(request: InsertTextParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Put text after a line; its lines end as those around them do."""
    path = context.resolve_path(request.file_path)
    if not request.text:
        raise ToolValidationError("The text to insert is empty; send at least one line")
    ensure_storable(request.text)
    ensure_short_enough(context, path, len(request.text))
    return changed_text(
        context,
        path,
        lambda text: insert_lines(text, request.line, request.text),
        noun="insertion",
    )


def insert_lines(text: str, line: int, new: str) -> EditOutcome:
    """Return `text` with `new` after a line, counted from 1; 0 is before the first one.

    What is inserted are whole lines, whether the last one has an end or not. If the last
    line of the text has no end, the last line afterwards has none either.

    Raises:
        ToolValidationError: There is no such line.
    """
    document = Document(text)
    count = len(document.raw_lines)
    if not 0 <= line <= count:
        raise ToolValidationError(
            f"There is no line {line}: the file has {count_text(count, 'line')},"
            f" so text can go after lines 0 to {count}"
        )
    at = document.line_stop(line - 1) if line else document.start
    put = _whole_lines(document, at, new.removeprefix(BOM))
    return EditOutcome(
        text[:at] + put + text[at:], MatchLevel.EXACT, 1, ((at, at),), ((at, at + len(put)),)
    )


def _whole_lines(document: Document, at: int, new: str) -> str:
    """Return the lines of `new` as they are put at a position."""
    if not document.raw_lines:
        return new
    ending = document.ending_at(max(at - 1, document.start)) or ("\r\n" if "\r\n" in new else "\n")
    lines = unify_line_ends(new).removesuffix("\n").replace("\n", ending)
    within = at == len(document.text) and not document.ends_with_newline
    return ending + lines if within else lines + ending
