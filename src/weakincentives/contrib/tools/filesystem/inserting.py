"""Text put between two lines of a file."""

from weakincentives.contrib.tools.edit import EditOutcome, Grade
from weakincentives.contrib.tools.edit.document import BOM, Document, unified
from weakincentives.contrib.tools.filesystem.editing import changed_text
from weakincentives.contrib.tools.filesystem.refusals import refuse_long, refuse_unstorable
from weakincentives.contrib.tools.filesystem.wording import counted
from weakincentives.contrib.tools.requests import InsertTextParams
from weakincentives.contrib.tools.results import EditFileResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult


def insert_text(request: InsertTextParams, bench: Workbench) -> ToolResult[EditFileResult]:
    """Put text after a line; its lines end as those around them do."""
    path = bench.path(request.file_path)
    if not request.text:
        raise ToolValidationError("The text to insert is empty; send at least one line")
    refuse_unstorable(request.text)
    refuse_long(bench, path, len(request.text))
    return changed_text(
        bench,
        path,
        lambda text: inserted(text, request.line, request.text),
        noun="insertion",
    )


def inserted(text: str, line: int, new: str) -> EditOutcome:
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
            f"There is no line {line}: the file has {counted(count, 'line')},"
            f" so text can go after lines 0 to {count}"
        )
    at = document.after(line - 1) if line else document.start
    put = _whole_lines(document, at, new.removeprefix(BOM))
    return EditOutcome(
        text[:at] + put + text[at:], Grade.EXACT, 1, ((at, at),), ((at, at + len(put)),)
    )


def _whole_lines(document: Document, at: int, new: str) -> str:
    """Return the lines of `new` as they are put at a position."""
    if not document.raw_lines:
        return new
    ending = document.ending_at(max(at - 1, document.start)) or ("\r\n" if "\r\n" in new else "\n")
    lines = unified(new).removesuffix("\n").replace("\n", ending)
    within = at == len(document.text) and not document.ends_with_newline
    return ending + lines if within else lines + ending
