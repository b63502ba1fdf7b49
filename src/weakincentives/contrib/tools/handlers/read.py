"""`read_file` and `read_many`: pages of numbered lines, and the choice of a view for each file.

Line numbers have the format of `cat -n`: from 1, six characters wide, followed by a tab.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import binary, notebooks, render
from weakincentives.contrib.tools.handlers.source import (
    NOT_UTF8,
    UTF8,
    Encoding,
    FileSource,
    ReadResult,
    detect_encoding,
    open_file,
    parse_range,
    past_end_error,
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
_REPLACEMENT = "\ufffd"
_END = ord("\n")
_GUTTER = 8  # characters of the line number, the tab and the newline


class _PageRow(NamedTuple):
    """A line of a page: its text as shown, and its content in the file."""

    number: int
    text: str
    content: str
    start: int
    cut: int
    crlf: bool
    exact: bool
    ended: bool
    endless: bool = False

    def render(self) -> str:
        least = "at least " if self.endless else ""
        more = f" [... {least}{render.format_count(self.cut, 'more byte')}]" if self.cut else ""
        return f"{self.number:>6}\t{self.text}{more}"


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text of a file as UTF-8, and the encoding it was stored in."""

    file: FileSource
    content: Content
    encoding: Encoding
    view: requests.FileView = "auto"


def render_text(source: TextFile) -> ReadResult:
    """Return a page of a text file."""
    file, page = source.file, source.file.page
    if not file.size:
        return ToolResult(
            f"{file.name} is empty (0 bytes)",
            _make_value(source, 0, "", 0),
            exclude_value_from_context=True,
        )
    result = _render_plain_page(source)
    if result is not None:
        return result
    start = _find_start(source)
    if page.first >= start.total_lines:
        last = requests.ReadFileParams(
            file.path, offset=max(start.total_lines - DEFAULT_READ_LIMIT, 0)
        )
        raise past_end_error(file, start.total_lines, "line", last)
    settings = file.context.settings
    width = settings.max_line_characters
    keep = 4 * width + 4  # bytes that hold at least `width` characters
    lines = render.read_lines(source.content, start.offset, keep)
    rows = (_make_row(number, raw, width) for number, raw in enumerate(lines, page.first + 1))
    wanted = islice(rows, page.clamp(DEFAULT_READ_LIMIT))
    renderer = _PageRenderer(source, start.total_lines, start.total_is_exact)
    return renderer.render(_fill_page(wanted, settings.budget))


def _render_plain_page(source: TextFile) -> ReadResult | None:
    """Return the page if its lines need no notes: a fast path for most pages."""
    data, page = source.file.head, source.file.page
    if source.encoding is not UTF8 or not source.file.complete or b"\r" in data or data[-1] != _END:
        return None
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    total = len(lines) - 1
    last = min(page.first + page.clamp(DEFAULT_READ_LIMIT), total)
    shown = lines[page.first : last]
    settings = source.file.context.settings
    if not shown or len(max(shown, key=len)) > settings.max_line_characters:
        return None
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(shown, page.first + 1)]
    head = f"{source.file.name}: lines {page.first + 1} to {last} of {total}"
    more = _PageRenderer(source, total).continuation(last) if last < total else ()
    message = "\n".join([head, *numbered, *more])
    if len(message) > settings.budget:
        return None
    value = _make_value(source, total, "\n".join(shown) + "\n", len(shown))
    return ToolResult(message, value, exclude_value_from_context=True)


def _find_start(source: TextFile) -> LineStart:
    """Return the byte at which the page starts, and the number of lines."""
    file, line = source.file, source.file.page.first
    if file.complete or source.encoding.wide:
        return render.find_line(source.content, line)
    try:
        return render.line_start(file.context.filesystem, file.path, line, file.size)
    except TimeLimitError:
        raise _line_timeout_error(file) from None


def _line_timeout_error(file: FileSource) -> TimeLimitError:
    """Return the error for a page that was not found in time, with the tools that can help."""
    middle = requests.ReadFileParams(file.path, offset=file.size // 2, view="base64")
    call = file.context.dialect.format_call(middle)
    return TimeLimitError(
        f"Read timed out before it reached line {file.page.first + 1:,} of {file.name!r}"
        f" ({file.size:,} bytes); start at an earlier line"
        + _search_hint(file.context)
        + render.hint("; byte offsets need no search, for example", call)
    )


def _search_hint(context: HandlerContext) -> str:
    """Return a hint to the search tool, if there is one."""
    dialect = context.dialect
    if dialect.encode(requests.GrepParams("x")) is None:
        return ""
    return f"; {dialect.tool_name(requests.GrepParams)} shows the text around a match"


def _make_row(number: int, raw: render.RawLine, width: int) -> _PageRow:
    data, exact = raw.data, True
    crlf = raw.ended and not raw.left_out and data.endswith(b"\r")
    if crlf:
        data = data[:-1]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode(errors="replace")[:width]
        exact = _REPLACEMENT not in text
    cut = raw.left_out
    if len(text) > width or cut:
        text = text[:width]
        cut += len(data) - len(text.encode())
    end = ("\r\n" if crlf else "\n") if raw.ended else ""
    return _PageRow(
        number, text, text + end, raw.start, max(cut, 0), crlf, exact, raw.ended, raw.endless
    )


def _fill_page(rows: Iterable[_PageRow], room: int) -> list[_PageRow]:
    """Return as many rows as fit, but at least one."""
    kept: list[_PageRow] = []
    for row in rows:
        room -= len(row.text) + _GUTTER
        if kept and (room < 0 or row.endless):
            break
        kept.append(row)
    return kept


@dataclass(frozen=True, slots=True)
class _PageRenderer:
    """Renders a page of numbered lines."""

    source: TextFile
    total: int
    exact: bool = True

    def render(self, rows: list[_PageRow]) -> ReadResult:
        """Return the page, with as many rows as the budget allows."""
        budget = self.source.file.context.settings.budget
        message = self._render_rows(rows)
        while len(message) > budget and len(rows) > 1:
            over = len(message) - budget
            while over > 0 and len(rows) > 1:
                over -= len(rows.pop().render()) + 1
            message = self._render_rows(rows)
        if len(message) > budget:
            rows = [_shorten_row(rows[0], len(message) - budget)]
            message = render.fit_budget([self._render_rows(rows)], "", budget)
        content = "".join(row.content for row in rows)
        value = _make_value(self.source, self.total, content, len(rows), exact=self.exact)
        return ToolResult(message, value, exclude_value_from_context=True)

    def _render_rows(self, rows: Sequence[_PageRow]) -> str:
        last = self.source.file.page.first + len(rows)
        total = f"{'' if self.exact else 'at least '}{self.total}"
        head = f"{self.source.file.name}: lines {rows[0].number} to {last} of {total}"
        continuation = () if rows[-1].endless else self.continuation(last)
        return "\n".join([head, *self._render_lines(rows), *self._notes(rows), *continuation])

    def _render_lines(self, rows: Sequence[_PageRow]) -> list[str]:
        first = rows[0]
        if first.number == 1 and first.text.startswith(_BOM):
            rows = [first._replace(text=first.text[1:]), *rows[1:]]
        return [row.render() for row in rows]

    def continuation(self, last: int) -> list[str]:
        """Return the line that says how to continue, if lines follow."""
        if last >= self.total and self.exact:
            return []
        file, view = self.source.file, self.source.view
        rest = requests.ReadFileParams(file.path, offset=last, limit=file.page.count, view=view)
        call = file.context.dialect.format_call(rest)
        more = f": {render.format_count(self.total - last, 'more line')}"
        if not self.exact:
            more = "; the file is too large to count all lines"
        return [f"[truncated{more}" + render.hint("; to continue:", call) + "]"]

    def _notes(self, rows: Sequence[_PageRow]) -> Iterator[str]:
        encoding = self.source.encoding
        if encoding.wide:
            yield f"[{(encoding.name or '').upper()} text, shown decoded]"
        if rows[0].number == 1 and rows[0].text.startswith(_BOM):
            yield "[starts with a UTF-8 byte order mark]"
        crlf = sum(row.crlf for row in rows)
        if crlf:
            yield f"[{'' if crlf >= len(rows) - 1 else 'some '}lines end in CRLF]"
        if not encoding.exact or not all(row.exact for row in rows):
            yield f"[not valid UTF-8: undecodable bytes are shown as {_REPLACEMENT}]"
        if not rows[-1].ended and not rows[-1].endless:
            yield "[no newline at end of file]"
        cut = [row for row in rows if row.cut]
        if cut:
            yield self._cut_note(cut)

    def _cut_note(self, rows: Sequence[_PageRow]) -> str:
        """Return which lines are cut, and how to see the rest of the first one."""
        first, context = rows[0], self.source.file.context
        which = f"line {first.number} is" if len(rows) == 1 else f"{len(rows)} lines are"
        note = f"[{which} too long to show in full"
        if rows[-1].endless:
            note += "; the end of the line was not reached"
        if not self.source.encoding.wide:
            at = first.start + len(first.text.encode())
            rest = requests.ReadFileParams(self.source.file.path, offset=at, view="base64")
            note += render.hint("; to read on:", context.dialect.format_call(rest))
        return f"{note}{_search_hint(context)}]"


def _shorten_row(row: _PageRow, over: int) -> _PageRow:
    """Return a row with about `over` fewer characters, and room for a note about it."""
    text = row.text[: max(len(row.text) - over - 30, 0)]
    cut = row.cut + len(row.text.encode()) - len(text.encode())
    return row._replace(text=text, content=text + row.content[len(row.text) :], cut=cut)


def _make_value(
    source: TextFile, total: int, content: str, shown: int, *, exact: bool = True
) -> ReadFileResult:
    encoding = (source.encoding.name or "utf-8").removesuffix("-sig")
    return source.file.page_value(content, shown, total, encoding=encoding, exact=exact)


_MAX_DECODED = 4 * 1024 * 1024  # bytes of the largest file that is decoded as a whole
_MAX_FILES = 50


def read_file(request: requests.ReadFileParams, context: HandlerContext) -> ReadResult:
    """Return a page of a file."""
    page = parse_range(request)
    file = open_file(context, context.resolve_path(request.file_path), page)
    if request.view == "hex" and file.size:
        return binary.render_hex(file)
    if request.view == "base64" and file.size:
        return binary.render_base64(file)
    if request.view == "text" or not file.size:
        return _render_as_text(file)
    return _render_file(file)


def read_many(
    request: requests.ReadManyParams, context: HandlerContext
) -> ToolResult[ReadManyResult]:
    """Return the first page of each of several files, or an error in its place."""
    paths = request.file_paths
    if not 0 < len(paths) <= _MAX_FILES:
        raise ToolValidationError(f"file_paths must have 1 to {_MAX_FILES} items: {len(paths)}")
    budget = context.settings.budget
    share = (budget - sum(len(render.format_path(path)) + 20 for path in paths)) // len(paths)
    smaller = replace(context, settings=replace(context.settings, max_characters=max(share, 1)))
    files: list[ReadFileResult] = []
    errors: list[str] = []
    texts: list[str] = []
    for path in paths:
        try:
            result = read_file(requests.ReadFileParams(path), smaller)
            texts.append(result.message)
            files += [] if result.value is None else [result.value]
        except (OSError, ValueError) as error:
            errors.append(f"{render.format_path(path)}: {error}")
            texts.append(errors[-1][: max(share, 1)])
    head = f"{render.format_count(len(files), 'file')} read" + (
        f", {len(errors)} failed" if errors else ""
    )
    message = "\n\n".join([head, *texts])[:budget]
    return ToolResult(
        message,
        ReadManyResult(tuple(files), tuple(errors)),
        success=bool(files),
        exclude_value_from_context=True,
    )


def _render_file(file: FileSource) -> ReadResult:
    """Return the view that suits the content: picture, notebook, text or hex dump."""
    picture = binary.parse_picture(file.head)
    if picture is not None:
        return binary.render_picture(file, picture)
    if file.path.endswith(".ipynb") and file.size <= notebooks.MAX_NOTEBOOK:
        notebook = notebooks.parse_notebook(file.content().read(0, file.size))
        if notebook is not None:
            return notebooks.render_notebook(file, notebook)
    source = _decode(file)
    return binary.render_binary(file) if source is None else render_text(source)


def _render_as_text(file: FileSource) -> ReadResult:
    """Return the file as text, even if it is binary."""
    return render_text(_decode(file) or TextFile(file, file.content(), NOT_UTF8, view="text"))


def _decode(file: FileSource) -> TextFile | None:
    """Return the text of a file; None if it is binary, or too large to be converted to UTF-8."""
    encoding = detect_encoding(file.head, complete=file.complete)
    if encoding.name is None or (encoding.wide and file.size > _MAX_DECODED):
        return None
    if not encoding.wide:
        return TextFile(file, file.content(), encoding)
    text = file.content().read(0, file.size).decode(encoding.name, errors="replace")
    encoding = replace(encoding, exact=_REPLACEMENT not in text)
    return TextFile(file, BytesContent(text.encode()), encoding)
