"""`edit_file` and `insert_text`, and what all changes share: reading a text, atomic changes.

Bytes that are not UTF-8 are decoded to surrogates and written back unchanged. One change is made
under the write lock; several are rolled back by a savepoint if the filesystem has savepoints, and
otherwise by before-images.
"""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing import Edit, EditOutcome, MatchLevel, apply_edits
from weakincentives.contrib.tools.editing.match import BOM, Document, unify_line_ends
from weakincentives.contrib.tools.handlers import errors, render
from weakincentives.contrib.tools.results import EditFileResult, FileChange
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    Filesystem,
    LimitExceededError,
    Movable,
    Rewritable,
    StaleContentError,
)
from weakincentives.filesystem.base import BINARY_PREFIX, hold_lock
from weakincentives.filesystem.diff import MAX_TEXT
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult
from weakincentives.runtime import before_images

T = TypeVar("T")
_MAX_ATTEMPTS = 3
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_UTF8 = (
    "The file is not UTF-8: the new text was written as UTF-8, all other bytes are unchanged"
)


def edit_file(
    request: requests.EditFileParams, context: HandlerContext
) -> ToolResult[EditFileResult]:
    """Replace text in a file; an empty old text creates a missing file."""
    return _apply_edits(request.file_path, _parse_edits(request), context, dry_run=request.dry_run)


def edit_expected(
    request: requests.CountedEditParams, context: HandlerContext
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
    errors.ensure_within_limit(context, path, sum(len(edit.new) for edit in edits), is_edit=True)
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

    With `may_create`, a missing file is created, as if it were empty; `noun` names one change.
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
    text = render.render_change(context, head, value.diff, path=path, applied=not dry_run)
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


def _parse_edits(request: requests.EditFileParams) -> tuple[Edit, ...]:
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


def insert_text(
    request: requests.InsertTextParams, context: HandlerContext
) -> ToolResult[EditFileResult]:
    """Insert text after a line, with the line endings of the file."""
    path = context.resolve_path(request.file_path)
    if not request.text:
        raise ToolValidationError("The text to insert is empty; send at least one line")
    errors.ensure_encodable(request.text)
    errors.ensure_within_limit(context, path, len(request.text), is_edit=True)
    return change_text(
        context, path, lambda text: insert_lines(text, request.line, request.text), noun="insertion"
    )


def insert_lines(text: str, line: int, new: str) -> EditOutcome:
    """Return `text` with `new` inserted after a line, counted from 1; 0 inserts at the start.

    `new` is inserted as complete lines, with or without a final newline. If the text has no
    final newline, the result has none either.
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


def decode_text(data: bytes) -> str:
    """Return bytes as text, with surrogates for those that are not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text from `decode_text`."""
    return text.encode("utf-8", "surrogateescape")


def read_for_edit(context: HandlerContext, path: str) -> bytes | None:
    """Return the bytes of a file to be edited; None if it does not exist."""
    try:
        found = context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.is_directory:
        raise errors.is_directory_error(context, path)
    if found.link_target is not None:
        raise errors.link_error(context, path, found.link_target)
    if found.size_bytes > MAX_TEXT:
        raise LimitExceededError(
            f"{render.format_path(path)!r} has {found.size_bytes} bytes; only files up to"
            f" {MAX_TEXT} bytes can be edited. Change it with a command, such as sed, or split it"
            " into smaller files"
        )
    return context.filesystem.read_bytes(path).content


def ensure_text(context: HandlerContext, path: str, data: bytes) -> None:
    """Check that the bytes of a file are text."""
    if b"\0" not in data[:BINARY_PREFIX]:
        return
    what = "UTF-16 text" if data.startswith(_UTF16_MARKS) else "binary"
    size = render.format_count(len(data), "byte")
    text = f"{render.format_path(path)!r} is {what} ({size}) and cannot be edited"
    how = errors.format_supported_call(
        context, requests.WriteFileParams(path, "", "overwrite", "base64"), "mode", "encoding"
    )
    raise ToolValidationError(text + render.hint("; to replace the whole file:", how))


class Changes:
    """Applies changes one after the other."""

    def __init__(self, filesystem: Filesystem) -> None:
        """Change `filesystem`."""
        self._fs = filesystem
        # a recording proxy records one file for a write, but all files for other changes
        self._direct = (
            None if isinstance(filesystem, before_images.RecordingFilesystem) else filesystem
        )

    def create(self, path: str, text: str) -> None:
        """Create a file and its missing parent directories."""
        self._fs.write(path, text, mode="create")

    def replace(self, path: str, data: bytes, expected: bytes) -> None:
        """Replace the bytes of an existing file of any size, if they are the `expected` ones."""
        if isinstance(self._direct, Rewritable):
            self._direct.replace_content(path, data, expected=expected)
        else:
            before_images.write_entire_file(self._fs, path, data)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._fs.delete(path)

    def move(self, source: str, destination: str) -> None:
        """Move a file or directory to a path that does not exist yet."""
        if isinstance(self._direct, Movable):
            self._direct.move(source, destination)
        else:
            self._copy(source, destination)
            self._fs.delete(source, recursive=self._fs.stat(source).is_directory)

    def _copy(self, source: str, destination: str) -> None:
        image = before_images.capture_image(self._fs, source)
        special = min((path for path, found in image.items() if found == "special"), default=None)
        if special is not None:
            raise ToolValidationError(
                f"Links cannot be moved in this workspace: {display_path(special)!r};"
                " move the other entries one by one"
            )
        if f"{destination}/".startswith(f"{source}/") and image.get(source) == "directory":
            raise ValueError(f"Cannot move a directory into itself: {display_path(destination)!r}")
        for path, found in image.items():
            target = destination + path[len(source) :]
            if isinstance(found, bytes):
                self._fs.write_bytes(target, b"", mode="create")
                before_images.write_entire_file(self._fs, target, found)
            else:
                self._fs.mkdir(target)


def retry_stale(change: Callable[[], T]) -> T:
    """Make a change; if another program saves a file meanwhile, try it on the new text."""
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(StaleContentError):
            return change()
    return change()


@contextmanager
def single_change(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Read, check and create or replace one file while other threads cannot change anything.

    The write lock makes the read-check-write atomic, and the change itself is one atomic
    operation, so that there is nothing to roll back. A filesystem without such a lock or
    such operations gets the guarantees of `all_or_none`. A move is not atomic on every
    backend, so it needs `all_or_none`.
    """
    release = hold_lock(filesystem) if _is_atomic(filesystem) else None
    if release is not None:
        try:
            yield Changes(filesystem)
        finally:
            release()
    else:
        with all_or_none(filesystem) as changes:
            yield changes


@contextmanager
def all_or_none(filesystem: Filesystem) -> Generator[Changes, None, None]:
    """Make several changes; if an exception leaves the block, all of them are undone.

    Meanwhile other threads cannot change anything, if the filesystem has savepoints.
    """
    with before_images.all_or_none(filesystem) as changed:
        yield Changes(changed)


def _is_atomic(filesystem: object) -> bool:
    return isinstance(filesystem, Rewritable) and not isinstance(
        filesystem, before_images.RecordingFilesystem
    )
