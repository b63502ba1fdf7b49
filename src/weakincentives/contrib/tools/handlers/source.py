"""Open files: first bytes, size, encoding detection and the requested page."""

import codecs
import re
from dataclasses import dataclass
from typing import TypeAlias

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import render
from weakincentives.contrib.tools.handlers.errors import access_error
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.contrib.tools.results import ReadFileResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import READ_ENTIRE_FILE, BytesContent, Content
from weakincentives.filesystem.base import BINARY_PREFIX
from weakincentives.prompt import ToolResult

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MARK_BYTES = frozenset(mark[:1] for mark, _ in _BYTE_ORDER_MARKS)
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f\b\x1b") + b"\x7f"
_NON_ASCII = re.compile(rb"[\x80-\xff]")
_MAX_CONTROLS = 0.02  # share of control characters in Latin-1 text
_MAX_NON_ASCII = 0.3  # share of bytes that are not plain ASCII


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of a file.

    Args:
        name: The codec; None for a binary file.
        wide: A newline takes more than one byte.
        exact: Every byte decodes to text.
    """

    name: str | None
    wide: bool = False
    exact: bool = True


ReadResult: TypeAlias = ToolResult[ReadFileResult]
"""What every view of a file returns."""
BINARY = Encoding(None)
UTF8 = Encoding("utf-8")
NOT_UTF8 = Encoding("utf-8", exact=False)


def detect_encoding(head: bytes, *, complete: bool) -> Encoding:
    """Return the encoding of a file that begins with `head`.

    Unless that is `complete`, its last character may be cut.
    """
    if head[:1] in _MARK_BYTES:
        for mark, name in _BYTE_ORDER_MARKS:
            if head.startswith(mark):
                return Encoding(name, wide=name != "utf-8-sig")
    prefix = head[:BINARY_PREFIX]
    if b"\0" in prefix:
        return BINARY
    complete = complete and len(head) <= BINARY_PREFIX
    if prefix.isascii() or _is_utf8(prefix, complete=complete):
        return UTF8 if _ratio(prefix, _CONTROLS) <= _MAX_NON_ASCII else BINARY
    return NOT_UTF8 if _looks_like_text(prefix) else BINARY


def _is_utf8(data: bytes, *, complete: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=complete)
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_text(data: bytes) -> bool:
    """Return whether this may be text in a single-byte encoding such as Latin-1."""
    non_ascii = len(_NON_ASCII.findall(data)) / len(data)
    return non_ascii <= _MAX_NON_ASCII and _ratio(data, _CONTROLS) <= _MAX_CONTROLS


def _ratio(data: bytes, counted: bytes) -> float:
    return (len(data) - len(data.translate(None, counted))) / max(len(data), 1)


@dataclass(frozen=True, slots=True)
class PageRange:
    """The requested page: the lines (bytes, cells) to skip, and how many to show."""

    first: int
    count: int | None

    def clamp(self, maximum: int) -> int:
        """Return the requested count, at most `maximum`."""
        return maximum if self.count is None else min(self.count, maximum)


_FROM_START = PageRange(0, None)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file that was opened to show a page of it."""

    path: str
    head: bytes
    """Its first bytes."""
    size: int
    context: HandlerContext
    page: PageRange

    @property
    def complete(self) -> bool:
        """Whether the head is the complete file."""
        return len(self.head) >= self.size

    @property
    def name(self) -> str:
        """The path for messages."""
        return render.format_path(self.path)

    def content(self) -> Content:
        """Return the content; a large file is read on demand."""
        if self.complete:
            return BytesContent(self.head)
        return render.WorkspaceContent(self.context.filesystem, self.path, self.size)

    def page_value(
        self,
        content: str,
        shown: int,
        total: int,
        *,
        encoding: str = "utf-8",
        exact: bool = True,
    ) -> ReadFileResult:
        """Return the result of a page with `shown` of `total` lines, bytes or cells."""
        after = self.page.first + shown
        return ReadFileResult(
            path=self.path,
            content=content,
            offset=self.page.first,
            shown=shown,
            total=total,
            next_offset=after if after < total or not exact else None,
            size_bytes=self.size,
            encoding=encoding,
            total_is_exact=exact,
        )


def open_file(context: HandlerContext, path: str, page: PageRange = _FROM_START) -> FileSource:
    """Open a file."""
    try:
        found = context.filesystem.read_bytes(path or ".", limit=render.CHUNK)
    except OSError as error:
        raise access_error(context, path, error, what="file") from None
    return FileSource(path, found.content, found.size_bytes, context, page)


def parse_range(request: ReadFileParams) -> PageRange:
    """Return the page that a request asks for."""
    offset, start, limit = request.offset, request.start_line, request.limit
    if offset < 0:
        raise ToolValidationError(f"offset must be at least 0: {offset}")
    if limit is not None and limit < 1 and limit != READ_ENTIRE_FILE:
        raise ToolValidationError(f"limit must be at least 1: {limit}")
    if start is not None:
        if start < 1:
            raise ToolValidationError(f"Line numbers start at 1: {start}")
        if offset not in {0, start - 1}:
            raise ToolValidationError(
                f"offset ({offset}) and start_line ({start}) disagree; send only one of them"
            )
        offset = start - 1
    return PageRange(offset, None if limit == READ_ENTIRE_FILE else limit)


def past_end_error(
    file: FileSource, total: int, noun: str, request: ReadFileParams
) -> ToolValidationError:
    """Return the error for a page that starts after the end of the file."""
    number = file.page.first + (noun != "byte")  # as displayed
    text = f"No {noun} {number:,}: {file.name!r} has only {render.format_count(total, noun)}"
    return ToolValidationError(
        text + render.hint("; use", file.context.dialect.format_call(request))
    )
