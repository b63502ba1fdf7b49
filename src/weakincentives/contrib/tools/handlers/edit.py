"""`edit_file` and `insert_text`: change part of a text file, and return the diff."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing import Edit, EditOutcome, MatchLevel, apply_edits
from weakincentives.contrib.tools.editing.model import BOM, Document, unify_line_ends
from weakincentives.contrib.tools.handlers import errors, render
from weakincentives.contrib.tools.handlers.changes import retry_stale, single_change
from weakincentives.contrib.tools.handlers.write import (
    decode_text,
    encode_text,
    ensure_text,
    read_for_edit,
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
_NOT_UTF8 = (
    "The file is not UTF-8: the new text was written as UTF-8, all other bytes are unchanged"
)


def edit_file(request: EditFileParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Replace text in a file; an empty old text creates a missing file."""
    return _apply_edits(request.file_path, _parse_edits(request), context, dry_run=request.dry_run)


def edit_expected(
    request: CountedEditParams, context: HandlerContext
) -> ToolResult[EditFileResult]:
    """Replace every occurrence of a text, if there are as many as expected."""
    if request.expected < 1:
        raise ToolValidationError(
            f"The expected number of replacements must be at least 1: {request.expected}"
        )
    is_several = request.expected > 1
    edit = Edit(
        request.old_string, request.new_string, is_several, request.expected if is_several else None
    )
    return _apply_edits(request.file_path, (edit,), context)


def _apply_edits(
    file_path: str, edits: Sequence[Edit], context: HandlerContext, *, dry_run: bool = False
) -> ToolResult[EditFileResult]:
    path = context.resolve_path(file_path)
    for edit in edits:
        errors.ensure_encodable(edit.new)
    errors.ensure_within_limit(context, path, sum(len(edit.new) for edit in edits))
    return change_text(
        context,
        path,
        # the result must stay small enough to be edited again
        lambda text: apply_edits(text, edits, room=max(MAX_TEXT - len(text), 0)),
        may_create=not edits[0].old,
        dry_run=dry_run,
    )


def change_text(
    context: HandlerContext,
    path: str,
    change: Callable[[str], EditOutcome],
    *,
    may_create: bool = False,
    dry_run: bool = False,
    noun: str = "replacement",
) -> ToolResult[EditFileResult]:
    """Change the text of a file, and return the diff.

    Args:
        context: The context of the request.
        path: The file.
        change: Returns the new text for the old one.
        may_create: Create a missing file, as if it were empty.
        dry_run: Only return what would change.
        noun: The name of one change, for the message.
    """
    if not dry_run:
        errors.ensure_writable(context, path)

    def attempt() -> tuple[bytes | None, EditOutcome]:
        with errors.explain_errors(context, path), single_change(context.filesystem) as changes:
            old = _read_old(context, path, may_create=may_create)
            text = decode_text(old or b"")
            outcome = _add_encoding_note(text, change(text))
            if not dry_run and old is None:
                changes.create(path, outcome.content)
            elif not dry_run and old is not None:
                changes.replace(path, encode_text(outcome.content), old)
            return old, outcome

    old, outcome = retry_stale(attempt)
    value = _make_value(path, old, outcome, applied=not dry_run)
    head = [_render_headline(value, noun), render.match_note(value.match_level), *value.notes]
    text = render.render_change(
        context, head, value.diff, rest=render.rest_hint(context, path, applied=not dry_run)
    )
    return ToolResult(text, value, exclude_value_from_context=True)


def _read_old(context: HandlerContext, path: str, *, may_create: bool) -> bytes | None:
    """Return the bytes of the text to change; None if the file is to be created."""
    old = read_for_edit(context, path)
    if old is not None:
        ensure_text(context, path, old)
    elif may_create:
        errors.ensure_creatable(context, path)
    else:
        raise errors.missing_path_error(context, path, what="file")
    return old


def _parse_edits(request: EditFileParams) -> tuple[Edit, ...]:
    """Return the edits, from either form of the request."""
    single = request.old_string is not None or request.new_string is not None
    if single and request.edits:
        raise ToolValidationError(
            "Both a single replacement and a list of edits were sent; send only one of them"
        )
    if request.edits:
        return tuple(
            Edit(each.old_string, each.new_string, each.replace_all or request.replace_all)
            for each in request.edits
        )
    if request.old_string is None:
        raise ToolValidationError(
            "The text to replace is missing; send it exactly as in the file, together with the"
            " replacement"
        )
    if request.new_string is None:
        raise ToolValidationError(
            "The replacement is missing; send an empty text to delete the old one"
        )
    return (Edit(request.old_string, request.new_string, request.replace_all),)


def _add_encoding_note(text: str, outcome: EditOutcome) -> EditOutcome:
    """Return the outcome with a note if UTF-8 was added to a text in another encoding."""
    put = "".join(outcome.content[start:end] for start, end in outcome.new_spans)
    if not _SURROGATE.search(text) or _SURROGATE.sub("", put).isascii():
        return outcome
    return replace(outcome, notes=(*outcome.notes, _NOT_UTF8))


def _make_value(
    path: str, old: bytes | None, outcome: EditOutcome, *, applied: bool
) -> EditFileResult:
    new = encode_text(outcome.content)
    compared = render.make_diff(path, old, new)
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


def _render_headline(value: EditFileResult, noun: str) -> str:
    name = render.format_path(value.changes[0].path)
    made = value.changes[0].kind == "added"
    lines = render.format_count(value.added, "line")
    if not made:
        places = render.format_count(value.replacements, noun)
        lines = f"{places}, {lines} added, {value.removed} removed"
    if not value.applied:
        would = "created" if made else "edited"
        return f"Dry run, nothing was changed. {name} would be {would}: {lines}"
    return f"{'Created' if made else 'Edited'} {name}: {lines}"


def insert_text(request: InsertTextParams, context: HandlerContext) -> ToolResult[EditFileResult]:
    """Insert text after a line, with the line endings of the file."""
    path = context.resolve_path(request.file_path)
    if not request.text:
        raise ToolValidationError("The text to insert is empty; send at least one line")
    errors.ensure_encodable(request.text)
    errors.ensure_within_limit(context, path, len(request.text))
    return change_text(
        context,
        path,
        lambda text: insert_lines(text, request.line, request.text),
        noun="insertion",
    )


def insert_lines(text: str, line: int, new: str) -> EditOutcome:
    """Return `text` with `new` inserted after a line, counted from 1; 0 inserts at the start.

    `new` is inserted as complete lines, with or without a final newline. If the text has no
    final newline, the result has none either.

    Raises:
        ToolValidationError: There is no such line.
    """
    document = Document(text)
    count = len(document.raw_lines)
    if not 0 <= line <= count:
        raise ToolValidationError(
            f"No line {line}: the file has {render.format_count(count, 'line')}; use a line from"
            f" 0 to {count}"
        )
    at = document.line_stop(line - 1) if line else document.start
    put = _complete_lines(document, at, new.removeprefix(BOM))
    return EditOutcome(
        text[:at] + put + text[at:], MatchLevel.EXACT, 1, ((at, at),), ((at, at + len(put)),)
    )


def _complete_lines(document: Document, at: int, new: str) -> str:
    """Return `new` as complete lines for a position in the document."""
    if not document.raw_lines:
        return new
    ending = document.ending_at(max(at - 1, document.start)) or ("\r\n" if "\r\n" in new else "\n")
    lines = unify_line_ends(new).removesuffix("\n").replace("\n", ending)
    within = at == len(document.text) and not document.ends_with_newline
    return ending + lines if within else lines + ending
