"""Text as a page of numbered lines: within the budget, and saying what is not shown.

The numbers count from 1, in six places, with a tab behind, as `cat -n` writes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.binary import (
    picture_of,
    show_base64,
    show_head,
    show_hex,
    show_picture,
)
from weakincentives.contrib.tools.handlers.notebooks import MAX_NOTEBOOK, notebook_of, show_notebook
from weakincentives.contrib.tools.handlers.render import (
    RawLine,
    count_text,
    find_line,
    fit,
    format_path,
    hint,
    line_start,
    lines_from,
)
from weakincentives.contrib.tools.handlers.source import (
    UNKNOWN,
    UTF8,
    Encoding,
    FileSource,
    Part,
    encoding_of,
    open_file,
    part_of,
    past_the_end,
)
from weakincentives.contrib.tools.requests import (
    FileView,
    GrepParams,
    ReadFileParams,
    ReadManyParams,
)
from weakincentives.contrib.tools.results import ReadFileResult, ReadManyResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_READ_LIMIT,
    BytesContent,
    Content,
    LineStart,
    TimeLimitError,
)
from weakincentives.prompt import ToolResult

_BOM = "\ufeff"
_UNKNOWN = "\ufffd"
_END = ord("\n")
_GUTTER = 8  # characters beside a line: its number, a tab, the line end


class _Row(NamedTuple):
    """A line of a page: what is shown of it, and what it is in the file."""

    number: int
    text: str
    content: str
    start: int
    cut: int
    crlf: bool
    exact: bool
    ended: bool
    endless: bool = False

    def shown(self) -> str:
        least = "at least " if self.endless else ""
        more = f" [... {least}{count_text(self.cut, 'more byte')}]" if self.cut else ""
        return f"{self.number:>6}\t{self.text}{more}"


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text of a file: bytes in UTF-8, and what was needed to get them."""

    file: FileSource
    content: Content
    encoding: Encoding
    view: FileView = "auto"

    @property
    def decoded(self) -> bool:
        """Whether the bytes of the file are others than those that are shown."""
        return self.encoding.wide


def decoded_file(file: FileSource, data: bytes, encoding: Encoding) -> TextFile:
    """Return a file whose encoding has line ends of several bytes, all of it, as UTF-8."""
    text = data.decode(encoding.name or "utf-8", errors="replace")
    exact = _UNKNOWN not in text
    return TextFile(file, BytesContent(text.encode()), replace(encoding, exact=exact))


def show_text(source: TextFile, part: Part, context: HandlerContext) -> ToolResult[ReadFileResult]:
    """Return a page of a text file."""
    file = source.file
    if not file.size:
        return ToolResult(
            f"{file.name} is empty (0 bytes)", _value(source, part, 0, "", 0), True, True
        )
    plain = _plain_page(source, part, context)
    if plain is not None:
        return plain
    place = _place(source, part.first, context)
    if part.first >= place.total_lines:
        last = ReadFileParams(file.path, offset=max(place.total_lines - DEFAULT_READ_LIMIT, 0))
        raise past_the_end(file, context, part, place.total_lines, "line", last)
    settings = context.settings
    rows = _rows(source.content, place.offset, part.first, settings.max_line_characters)
    wanted = islice(rows, part.capped(DEFAULT_READ_LIMIT))
    page = _Page(source, part, place.total_lines, context, place.total_is_exact)
    return page.result(_filling(wanted, settings.budget))


def _plain_page(
    source: TextFile, part: Part, context: HandlerContext
) -> ToolResult[ReadFileResult] | None:
    """Return the page if there is nothing to say about its lines: most pages, in one go."""
    data = source.file.head
    if source.encoding is not UTF8 or not source.file.whole or b"\r" in data or data[-1] != _END:
        return None
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    total = len(lines) - 1
    last = min(part.first + part.capped(DEFAULT_READ_LIMIT), total)
    shown = lines[part.first : last]
    settings = context.settings
    if not shown or len(max(shown, key=len)) > settings.max_line_characters:
        return None
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(shown, part.first + 1)]
    head = f"{source.file.name}: lines {part.first + 1} to {last} of {total}"
    more = _Page(source, part, total, context).more(last) if last < total else ()
    message = "\n".join([head, *numbered, *more])
    if len(message) > settings.budget:
        return None
    value = _value(source, part, total, "\n".join(shown) + "\n", len(shown))
    return ToolResult(message, value, True, True)


def _place(source: TextFile, line: int, context: HandlerContext) -> LineStart:
    """Return the byte at which a line begins, and how many lines there are.

    Raises:
        TimeLimitError: The line was not found in time; it says what to do instead.
    """
    if source.file.whole or source.decoded:
        return find_line(source.content, line)
    try:
        return line_start(context.filesystem, source.file.path, line, source.file.size)
    except TimeLimitError:
        raise _not_found_in_time(source.file, line, context) from None


def _not_found_in_time(file: FileSource, line: int, context: HandlerContext) -> TimeLimitError:
    """Return the error for a page that was not found, with what the tools at hand can do."""
    middle = ReadFileParams(file.path, offset=file.size // 2, view="base64")
    return TimeLimitError(
        f"Read stopped: the time limit has passed before line {line + 1:,} was found in"
        f" {file.name!r}, which has {file.size:,} bytes; begin at an earlier line"
        + _search_hint(context)
        + hint(
            "; bytes are found at once, those in the middle with",
            context.dialect.format_call(middle),
        )
    )


def _search_hint(context: HandlerContext) -> str:
    """Return which tool shows lines by what is in them, if there is one."""
    dialect = context.dialect
    if dialect.encode(GrepParams("x")) is None:
        return ""
    return f"; {dialect.tool_name(GrepParams)} shows what is around a match"


def _rows(content: Content, start: int, first: int, width: int) -> Iterator[_Row]:
    keep = 4 * width + 4  # bytes that surely hold `width` characters
    for number, raw in enumerate(lines_from(content, start, keep), first + 1):
        yield _row(number, raw, width)


def _row(number: int, raw: RawLine, width: int) -> _Row:
    data, exact = raw.data, True
    crlf = raw.ended and not raw.left_out and data.endswith(b"\r")
    if crlf:
        data = data[:-1]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")[:width]
        exact = _UNKNOWN not in text
    cut = raw.left_out
    if len(text) > width or cut:
        text = text[:width]
        cut += len(data) - len(text.encode())
    end = ("\r\n" if crlf else "\n") if raw.ended else ""
    return _Row(
        number, text, text + end, raw.start, max(cut, 0), crlf, exact, raw.ended, raw.endless
    )


def _filling(rows: Iterable[_Row], room: int) -> list[_Row]:
    """Return rows until they fill a page; there is always one."""
    kept: list[_Row] = []
    for row in rows:
        room -= len(row.text) + _GUTTER
        if kept and (room < 0 or row.endless):
            break
        kept.append(row)
    return kept


@dataclass(frozen=True, slots=True)
class _Page:
    """A page in the making."""

    source: TextFile
    part: Part
    total: int
    context: HandlerContext
    exact: bool = True

    def result(self, rows: list[_Row]) -> ToolResult[ReadFileResult]:
        """Return the page: as many of the rows as the budget has room for."""
        budget = self.context.settings.budget
        message = self._message(rows)
        while len(message) > budget and len(rows) > 1:
            over = len(message) - budget
            while over > 0 and len(rows) > 1:
                over -= len(rows.pop().shown()) + 1
            message = self._message(rows)
        if len(message) > budget:
            rows = [_shortened(rows[0], len(message) - budget)]
            message = fit([self._message(rows)], "", budget)
        content = "".join(row.content for row in rows)
        value = _value(self.source, self.part, self.total, content, len(rows), exact=self.exact)
        return ToolResult(message, value, True, True)

    def _message(self, rows: Sequence[_Row]) -> str:
        last = self.part.first + len(rows)
        total = f"{'' if self.exact else 'at least '}{self.total}"
        head = f"{self.source.file.name}: lines {rows[0].number} to {last} of {total}"
        more = () if rows[-1].endless else self.more(last)
        return "\n".join([head, *self._shown(rows), *self._notes(rows), *more])

    def _shown(self, rows: Sequence[_Row]) -> list[str]:
        first = rows[0]
        if first.number == 1 and first.text.startswith(_BOM):
            rows = [first._replace(text=first.text[1:]), *rows[1:]]
        return [row.shown() for row in rows]

    def more(self, last: int) -> list[str]:
        """Return what is said if lines follow."""
        if last >= self.total and self.exact:
            return []
        path, view = self.source.file.path, self.source.view
        call = self.context.dialect.format_call(
            ReadFileParams(path, offset=last, limit=self.part.count, view=view)
        )
        uncounted = "" if self.exact else "; the file is too large to count all of its lines"
        return ["[truncated" + uncounted + hint("; continue with", call) + "]"]

    def _notes(self, rows: Sequence[_Row]) -> Iterator[str]:
        encoding = self.source.encoding
        if encoding.wide:
            yield f"[{(encoding.name or '').upper()} text, shown decoded]"
        if rows[0].number == 1 and rows[0].text.startswith(_BOM):
            yield "[begins with a UTF-8 byte order mark]"
        crlf = sum(row.crlf for row in rows)
        if crlf:
            yield f"[{'' if crlf >= len(rows) - 1 else 'some '}lines end in CRLF]"
        if not encoding.exact or not all(row.exact for row in rows):
            yield f"[not UTF-8: bytes that are no text are shown as {_UNKNOWN}]"
        if not rows[-1].ended and not rows[-1].endless:
            yield "[no newline at the end]"
        cut = [row for row in rows if row.cut]
        if cut:
            yield self._cut(cut)

    def _cut(self, rows: Sequence[_Row]) -> str:
        """Say which lines are not shown to their ends, and how to see the rest of the first."""
        first = rows[0]
        which = f"line {first.number} is" if len(rows) == 1 else f"{len(rows)} lines are"
        note = f"[{which} too long to show"
        if rows[-1].endless:
            note += ", and its end was not reached"
        if not self.source.decoded:
            at = first.start + len(first.text.encode())
            rest = ReadFileParams(self.source.file.path, offset=at, view="base64")
            note += hint("; the bytes that follow:", self.context.dialect.format_call(rest))
        return f"{note}{_search_hint(self.context)}]"


def _shortened(row: _Row, over: int) -> _Row:
    """Return a row with about `over` characters less, and room to say so."""
    text = row.text[: max(len(row.text) - over - 30, 0)]
    cut = row.cut + len(row.text.encode()) - len(text.encode())
    return row._replace(text=text, content=text + row.content[len(row.text) :], cut=cut)


def _value(
    source: TextFile, part: Part, total: int, content: str, shown: int, *, exact: bool = True
) -> ReadFileResult:
    after = part.first + shown
    return ReadFileResult(
        path=source.file.path,
        content=content,
        offset=part.first,
        shown=shown,
        total=total,
        next_offset=after if after < total or not exact else None,
        size_bytes=source.file.size,
        encoding=(source.encoding.name or "utf-8").removesuffix("-sig"),
        total_is_exact=exact,
    )


_MAX_DECODED = 4 * 1024 * 1024  # bytes of a file that has to be decoded as a whole
_MOST_FILES = 50


def read_file(request: ReadFileParams, context: HandlerContext) -> ToolResult[ReadFileResult]:
    """Return a page of a file.

    Raises:
        OSError: It cannot be read; the text says what to do instead.
        ToolValidationError: The page cannot be.
    """
    part = part_of(request)
    file = open_file(context, context.resolve_path(request.file_path))
    if request.view == "hex" and file.size:
        return show_hex(file, part, context)
    if request.view == "base64" and file.size:
        return show_base64(file, part, context)
    if request.view == "text" or not file.size:
        return _show_as_text(file, part, context)
    return _show(file, part, context)


def read_many(request: ReadManyParams, context: HandlerContext) -> ToolResult[ReadManyResult]:
    """Return the first pages of several files; those that cannot be read have an error.

    Raises:
        ToolValidationError: There are none, or too many.
    """
    paths = request.file_paths
    if not 0 < len(paths) <= _MOST_FILES:
        raise ToolValidationError(f"file_paths must name 1 to {_MOST_FILES} files: {len(paths)}")
    budget = context.settings.budget
    share = (budget - sum(len(format_path(path)) + 20 for path in paths)) // len(paths)
    small = replace(context, settings=replace(context.settings, max_characters=max(share, 1)))
    files: list[ReadFileResult] = []
    errors: list[str] = []
    texts: list[str] = []
    for path in paths:
        try:
            result = read_file(ReadFileParams(path), small)
            texts.append(result.message)
            files += [] if result.value is None else [result.value]
        except (OSError, ValueError) as error:
            errors.append(f"{format_path(path)}: {error}")
            texts.append(errors[-1][: max(share, 1)])
    head = f"{count_text(len(files), 'file')} read" + (f", {len(errors)} not" if errors else "")
    message = "\n\n".join([head, *texts])[:budget]
    return ToolResult(message, ReadManyResult(tuple(files), tuple(errors)), bool(files), True)


def _show(file: FileSource, part: Part, context: HandlerContext) -> ToolResult[ReadFileResult]:
    """Return what suits the bytes of a file best."""
    picture = picture_of(file.head)
    if picture is not None:
        return show_picture(file, picture, context)
    if file.path.endswith(".ipynb") and file.size <= MAX_NOTEBOOK:
        notebook = notebook_of(file.content(context).read(0, file.size))
        if notebook is not None:
            return show_notebook(file, notebook, part, context)
    encoding = encoding_of(file.head, whole=file.whole)
    if encoding.name is None or (encoding.wide and file.size > _MAX_DECODED):
        return show_head(file, part, context)
    return _show_encoded(file, encoding, part, context)


def _show_as_text(
    file: FileSource, part: Part, context: HandlerContext
) -> ToolResult[ReadFileResult]:
    """Return text as it was asked for, even if it is none."""
    encoding = encoding_of(file.head, whole=file.whole)
    if encoding.name is None or (encoding.wide and file.size > _MAX_DECODED):
        source = TextFile(file, file.content(context), UNKNOWN, view="text")
        return show_text(source, part, context)
    return _show_encoded(file, encoding, part, context)


def _show_encoded(
    file: FileSource, encoding: Encoding, part: Part, context: HandlerContext
) -> ToolResult[ReadFileResult]:
    if encoding.wide:
        data = file.content(context).read(0, file.size)
        return show_text(decoded_file(file, data, encoding), part, context)
    return show_text(TextFile(file, file.content(context), encoding), part, context)
