"""Text for the model: sizes, counts, paths, budgets, lines of files and diffs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    Content,
    Coverage,
    Filesystem,
    LineIndexed,
    LineStart,
    TimeLimitError,
)
from weakincentives.filesystem.base import LineIndex, page_timeout_error
from weakincentives.filesystem.diff import (
    MAX_TEXT,
    changed_blocks,
    encode_path,
    hunks,
    label_path,
    quote_path,
    split_lines,
)
from weakincentives.posix import display_path, early_time_limit, shorten_path
from weakincentives.prompt import ToolResult

V = TypeVar("V")
_MAX_NAMES = 3  # paths listed of those that were missed
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_size(size: int) -> str:
    """Return a readable size: "312 bytes", "4.1 kB", "5.2 MB"."""
    if size < 1_000:
        return format_count(size, "byte")
    amount, unit = float(size), 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1_000, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 file", "1,204 files"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_path(path: str) -> str:
    """Return a path for a message: shortened, with invisible characters escaped."""
    return display_path(shorten_path(path))


def format_missed(coverage: Coverage, how: str) -> str:
    """Return what a search missed: "; not searched: 2 files and 1 directory (a, b, c/)"."""
    parts = [format_count(coverage.missed_files, "file")] if coverage.missed_files else []
    if coverage.missed_directories:
        parts.append(format_count(coverage.missed_directories, "directory", "directories"))
    if not parts:
        return ""
    names = [format_path(each) for each in coverage.missed_paths[:_MAX_NAMES]]
    more = ", ..." if coverage.missed_files + coverage.missed_directories > len(names) else ""
    return f"; {how}: {' and '.join(parts)} ({', '.join(names)}{more})"


def join_words(words: Iterable[str], conjunction: str = "or") -> str:
    """Return a list of words: "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def hint(text: str, call: str | None) -> str:
    """Return a hint that ends in a call; empty if there is no such call."""
    return "" if call is None else f"{text} {call}"


def fit_budget(parts: Iterable[str], foot: str, budget: int) -> str:
    """Return a message of at most `budget` characters; the foot is kept if it fits."""
    text = "\n".join([*parts, foot] if foot else parts)
    if len(text) <= budget:
        return text
    room = budget - len(foot) - 1
    return f"{text[:room]}\n{foot}" if foot and room > 0 else text[:budget]


def bounded_result(
    context: HandlerContext, parts: Iterable[str], value: V, foot: str = ""
) -> ToolResult[V]:
    """Return a result whose text is within the budget; its value is for programs."""
    text = fit_budget(parts, foot, context.settings.budget)
    return ToolResult(text, value, exclude_value_from_context=True)


def room_for(budget: int, margin: int) -> int:
    """Return the characters left for content, at least half of the budget."""
    return max(budget - margin, budget // 2)


def take_lines(lines: Iterable[str], room: int) -> list[str]:
    """Return the first lines that fit into `room` characters with their newlines."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


CHUNK = 128 * 1024
"""Bytes read at once."""
_MAX_PAGE_BYTES = 256 * 1024 * 1024  # bytes read for one page at most


class RawLine(NamedTuple):
    """A line: its bytes without the newline, its offset, and the number of bytes omitted.

    If `endless`, the end of the line was not reached, and the number is a lower bound.
    """

    data: bytes
    start: int
    left_out: int = 0
    ended: bool = True
    endless: bool = False


class WorkspaceContent(Content):
    """The content of a file, read on demand through the filesystem protocol."""

    __slots__ = ("_filesystem", "_path", "_size")

    def __init__(self, filesystem: Filesystem, path: str, size: int) -> None:
        """Read `path`, which has `size` bytes."""
        self._filesystem = filesystem
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._filesystem.read_bytes(self._path, offset=offset, limit=size).content


def line_start(filesystem: Filesystem, path: str, line: int, size: int) -> LineStart:
    """Return the offset of `line`, counted from 0, and the number of lines."""
    if isinstance(filesystem, LineIndexed):
        return filesystem.line_start(path, line)
    try:
        with early_time_limit(DEFAULT_LIMITS.max_read_seconds):
            return find_line(WorkspaceContent(filesystem, path, size), line)
    except TimeLimitError:
        raise page_timeout_error(path, line, size) from None


def find_line(content: Content, line: int) -> LineStart:
    """Return the offset of `line` in `content`, and the number of lines."""
    index = LineIndex()
    start = index.find(line, content) or 0
    return LineStart(start, *index.count(content, start + DEFAULT_LIMITS.max_count_bytes))


def read_lines(
    content: Content, start: int, keep: int, max_bytes: int = _MAX_PAGE_BYTES
) -> Iterator[RawLine]:
    """Yield the lines from offset `start`, each cut to `keep` bytes.

    At most `max_bytes` are read; a line that does not end within them is the last one.
    """
    at = begin = start
    kept, left_out = b"", 0
    while chunk := content.read(at, CHUNK):
        if at - start >= max_bytes:
            if begin < at:
                yield RawLine(kept, begin, left_out, ended=False, endless=True)
            return
        at += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            data = kept + piece if kept else piece
            yield RawLine(data[:keep], begin, left_out + max(len(data) - keep, 0))
            begin += len(data) + left_out + 1
            kept, left_out = b"", 0
        kept += rest
        left_out += max(len(kept) - keep, 0)
        kept = kept[:keep]
    if kept:
        yield RawLine(kept, begin, left_out, ended=False)


MAX_DIFF = 12_000
"""Characters of a diff that a model is shown."""
_MAX_DIFF_LINES = 200  # the model has just sent most of the new lines
_CONTEXT = 3
_NOTE_ROOM = 300  # characters for the truncation note
_LOOSE_MATCH = {
    MatchLevel.LINE_ENDINGS: "the line endings differ",
    MatchLevel.TRAILING_SPACE: "trailing whitespace differs",
    MatchLevel.INDENTATION: "the indentation differs",
    MatchLevel.UNICODE: "similar-looking characters (quotes, dashes, spaces) differ",
}


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The diff of one file.

    Args:
        text: A unified diff; bytes that are not UTF-8 are escaped.
        added: Number of added lines.
        removed: Number of removed lines.
        blocks: Number of changed blocks of lines.
    """

    text: str
    added: int = 0
    removed: int = 0
    blocks: int = 0


def make_diff(
    path: str, old: bytes | None, new: bytes | None, *, source: str | None = None
) -> FileDiff:
    """Return the diff of a file; None means no file, `source` is its path before a move."""
    before, after = old or b"", new or b""
    names = quote_path(b"a/" + encode_path(source or path)), quote_path(b"b/" + encode_path(path))
    if b"\0" in before or b"\0" in after or max(len(before), len(after)) > MAX_TEXT:
        return FileDiff(_decode(b"Binary files %b and %b differ\n" % names))
    lines, new_lines = split_lines(before), split_lines(after)
    blocks = changed_blocks(lines, new_lines)
    parts = [*_header(path, old, new, source, changed=bool(blocks))]
    parts += hunks(lines, new_lines, blocks, _CONTEXT)
    return FileDiff(
        _decode(b"".join(parts)),
        sum(each.new_stop - each.new_start for each in blocks),
        sum(each.stop - each.start for each in blocks),
        len(blocks),
    )


def _header(
    path: str, old: bytes | None, new: bytes | None, source: str | None, *, changed: bool
) -> Iterator[bytes]:
    first, second = b"a/" + encode_path(source or path), b"b/" + encode_path(path)
    if source is not None or not changed:
        yield b"diff --git %b %b\n" % (quote_path(first), quote_path(second))
    if source is not None:
        yield b"rename from %b\n" % quote_path(encode_path(source))
        yield b"rename to %b\n" % quote_path(encode_path(path))
    elif not changed and old is None:
        yield b"new file mode 100644\n"
    elif not changed and new is None:
        yield b"deleted file mode 100644\n"
    if changed:
        yield b"--- %b\n" % label_path(b"a/", None if old is None else source or path)
        yield b"+++ %b\n" % label_path(b"b/", None if new is None else path)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def render_change(
    context: HandlerContext,
    head: Sequence[str],
    diff: str,
    *,
    path: str | None,
    applied: bool = True,
    limit: int = MAX_DIFF,
) -> str:
    """Return the message for a change: some lines, then the diff, cut to the budget.

    `path` is the file to read for what is not shown.
    """
    text = _shorten("\n".join(line for line in head if line), context.settings.budget)
    room = min(limit, context.settings.budget - len(text) - _NOTE_ROOM)
    if not diff:
        return text
    kept, left = _cut_diff(diff, room, context.settings.max_line_characters)
    if left:
        rest = None if path is None else _rest_hint(context, path, applied=applied)
        how = "" if rest is None else f"; {rest}"
        kept += f"[truncated: {left} more lines of the diff{how}]"
    return _shorten(f"{text}\n{kept}".rstrip("\n"), context.settings.budget)


def _rest_hint(context: HandlerContext, path: str, *, applied: bool) -> str | None:
    """Return how to see the part of a change that is not shown."""
    if not applied:
        return "to see all of it, make fewer changes at once"
    how = context.dialect.format_call(ReadFileParams(path))
    return None if how is None else f"to see {format_path(path)} now: {how}"


def count_lines(data: bytes) -> int:
    """Return the number of lines."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def match_note(level: MatchLevel) -> str:
    """Return a note on the differences that the match ignored; empty if it was exact."""
    what = _LOOSE_MATCH.get(level)
    return "" if what is None else f"The match is not exact: {what}"


def _shorten(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    note = "\n[shortened]"
    return text[: max(room - len(note), 0)] + note[:room]


def _cut_diff(diff: str, room: int, width: int) -> tuple[str, int]:
    """Return the lines that fit, with long ones cut, and the number of those that do not."""
    lines = diff.removesuffix("\n").split("\n")
    kept: list[str] = []
    for number, line in enumerate(lines[:_MAX_DIFF_LINES]):
        if len(line) > width:
            line = f"{line[:width]}... ({len(line) - width} more characters)"
        room -= len(line) + 1
        if room < 0:
            return "".join(kept), len(lines) - number
        kept.append(line + "\n")
    return "".join(kept), len(lines) - len(kept)
