"""What the bytes of a file are: text in some encoding, or not text."""

import codecs
import re
from dataclasses import dataclass

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.errors import link_error, present
from weakincentives.contrib.tools.handlers.render import (
    CHUNK,
    WorkspaceContent,
    count_text,
    format_path,
    hint,
)
from weakincentives.contrib.tools.requests import LsParams, ReadFileParams
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import READ_ENTIRE_FILE, BytesContent, Content

SNIFF_LENGTH = 8 * 1024
"""How many bytes are looked at."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_FIRST = frozenset(mark[:1] for mark, _ in _MARKS)
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f\b\x1b") + b"\x7f"
_FOREIGN = re.compile(rb"[\x80-\xff]")
_MOST_CONTROLS = 0.02
_MOST_FOREIGN = 0.3


@dataclass(frozen=True, slots=True)
class Encoding:
    """How text is stored.

    Args:
        name: The codec; None if it is not text.
        wide: A line end is more than one byte.
        exact: Every byte can be shown.
    """

    name: str | None
    wide: bool = False
    exact: bool = True


BINARY = Encoding(None)
UTF8 = Encoding("utf-8")
UNKNOWN = Encoding("utf-8", exact=False)


def encoding_of(head: bytes, *, whole: bool) -> Encoding:
    """Return how a file that begins with `head` stores text.

    Args:
        head: The beginning.
        whole: There is no more; otherwise a character may be cut off at the end.
    """
    if head[:1] in _FIRST:
        for mark, name in _MARKS:
            if head.startswith(mark):
                return Encoding(name, wide=name != "utf-8-sig")
    sniffed = head[:SNIFF_LENGTH]
    if b"\0" in sniffed:
        return BINARY
    whole = whole and len(head) <= SNIFF_LENGTH
    if sniffed.isascii() or _is_utf8(sniffed, whole=whole):
        return UTF8 if _share(sniffed, _CONTROLS) <= _MOST_FOREIGN else BINARY
    return UNKNOWN if _looks_like_text(sniffed) else BINARY


def _is_utf8(data: bytes, *, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_text(data: bytes) -> bool:
    """Whether this may be text in an encoding of one byte for a character, such as Latin-1."""
    foreign = len(_FOREIGN.findall(data)) / len(data)
    return foreign <= _MOST_FOREIGN and _share(data, _CONTROLS) <= _MOST_CONTROLS


def _share(data: bytes, wanted: bytes) -> float:
    """Return which part of `data` is among `wanted`."""
    return (len(data) - len(data.translate(None, wanted))) / max(len(data), 1)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file: its path, its first bytes, and how large it is."""

    path: str
    head: bytes
    size: int

    @property
    def whole(self) -> bool:
        """Whether the head is all of it."""
        return len(self.head) >= self.size

    @property
    def name(self) -> str:
        """Its path as it is shown."""
        return format_path(self.path)

    def content(self, context: HandlerContext) -> Content:
        """Return its bytes; those of a large file are read as they are asked for."""
        if self.whole:
            return BytesContent(self.head)
        return WorkspaceContent(context.filesystem, self.path, self.size)


@dataclass(frozen=True, slots=True)
class Part:
    """Which part is wanted: how many lines (bytes, cells) to skip, and how many to show."""

    first: int
    count: int | None

    def capped(self, most: int) -> int:
        """Return how many to show where `most` are a page."""
        return most if self.count is None else min(self.count, most)


def open_file(context: HandlerContext, path: str) -> FileSource:
    """Open a file.

    Raises:
        OSError: It cannot be read; the text says what to do instead.
    """
    try:
        page = context.filesystem.read_bytes(path or ".", limit=CHUNK)
    except OSError as error:
        raise _explained(context, path, error) from None
    return FileSource(path, page.content, page.size_bytes)


def part_of(request: ReadFileParams) -> Part:
    """Return the part that a request asks for.

    Raises:
        ToolValidationError: It asks for something that cannot be.
    """
    offset, start, limit = request.offset, request.start_line, request.limit
    if offset < 0:
        raise ToolValidationError(f"How much to skip must not be negative: {offset}")
    if limit is not None and limit < 1 and limit != READ_ENTIRE_FILE:
        raise ToolValidationError(f"How much to return must be at least 1: {limit}")
    if start is not None:
        if start < 1:
            raise ToolValidationError(f"Lines count from 1: {start}")
        if offset not in {0, start - 1}:
            raise ToolValidationError(
                "The page is to begin in two places, say it once:"
                f" after {count_text(offset, 'line')}, and at line {start}"
            )
        offset = start - 1
    return Part(offset, None if limit == READ_ENTIRE_FILE else limit)


def past_the_end(
    file: FileSource,
    context: HandlerContext,
    part: Part,
    total: int,
    noun: str,
    request: ReadFileParams,
) -> ToolValidationError:
    """Return the error for a page that begins after the last line."""
    wanted = part.first if noun == "byte" else part.first + 1  # as they are shown
    text = f"There is no {noun} {wanted:,}: {file.name!r} has {count_text(total, noun)}"
    return ToolValidationError(text + hint("; use", context.dialect.format_call(request)))


def _explained(context: HandlerContext, path: str, error: OSError) -> OSError:
    """Return why a file cannot be read, in words that say what to do."""
    found = present(context, path, what="file")
    target = getattr(found, "link_target", None)
    if target is not None:
        return link_error(context, path, target)
    if found.is_directory:
        call = context.dialect.format_call(LsParams(path or "."))
        return IsADirectoryError(
            f"{format_path(path)!r} is a directory" + hint("; to list it:", call)
        )
    return error
