"""What the tables of several dialects need to spell requests."""

from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from weakincentives.contrib.tools.requests import (
    EditFileParams,
    ReadFileParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.errors import ToolValidationError

T = TypeVar("T")
EDIT_ALIASES = {
    "old_str": "old_string",
    "oldText": "old_string",
    "old_text": "old_string",
    "oldString": "old_string",
    "new_str": "new_string",
    "newText": "new_string",
    "new_text": "new_string",
    "newString": "new_string",
}
"""What models call the two texts of a replacement."""


def identity(params: T, context: object) -> T:
    """Return the request that parameters mean which are one."""
    return params


def fields_as_they_are(request: T) -> T:
    """Return the parameters of a tool that takes the request itself."""
    return request


def says_only(request: Any, *names: str) -> bool:
    """Return whether every other field of a request is left at its default."""
    return all(
        getattr(request, each.name) == _default(each)
        for each in fields(request)
        if each.name not in names
    )


def lines_before(first: int | None) -> int:
    """Return how many lines come before a line that counts from 1; 0 is taken for 1.

    Raises:
        ToolValidationError: There is no such line.
    """
    if first is not None and first < 0:
        raise ToolValidationError(f"Lines count from 1: {first!r}")
    return max((first or 1) - 1, 0)


def first_line(request: ReadFileParams) -> int | None:
    """Return the line that a page begins with, counted from 1; None for the first."""
    first = request.start_line if request.start_line is not None else request.offset + 1
    return first if first > 1 else None


def last_line(request: ReadFileParams) -> int | None:
    """Return the line that a page ends with, counted from 1; None if nothing says."""
    return None if request.limit is None else (first_line(request) or 1) + request.limit - 1


def page(file_path: str, first: int | None, last: int | None) -> ReadFileParams:
    """Return the request for lines that count from 1, the last one included.

    Raises:
        ToolValidationError: The last line is before the first.
    """
    before = lines_before(first)
    if last is not None and last <= before:
        raise ToolValidationError(
            f"The last line must not be before the first: {before + 1} to {last}"
        )
    return ReadFileParams(file_path, before, None if last is None else last - before)


def is_page(request: ReadFileParams) -> bool:
    """Return whether lines say it: no other view, and a page that is not empty."""
    return says_only(request, "file_path", "offset", "limit", "start_line") and (
        request.limit is None or request.limit > 0
    )


def is_whole_text(request: WriteFileParams) -> bool:
    """Return whether a tool that writes whole texts, and nothing else, says it."""
    return request.encoding == "utf-8" and request.mode != "append"


def one_edit(request: EditFileParams) -> TextEdit | None:
    """Return the replacement that a request asks for; None if it asks for more than one."""
    if request.dry_run:
        return None
    if request.edits:
        return request.edits[0] if len(request.edits) == 1 else None
    if request.old_string is None or request.new_string is None:
        return None
    return TextEdit(request.old_string, request.new_string, request.replace_all)


def _default(each: Field[Any]) -> object:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return each.default
