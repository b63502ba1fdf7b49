"""How sizes, counts and paths are said to a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    quote_path,
    split_lines,
)
from weakincentives.posix import display_path, early_time_limit, shorten_path

_NAMED = 3  # paths that are named of those that were left out
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def size_text(size: int) -> str:
    """Return a size for people: "312 bytes", "4.1 kB", "5.2 MB"."""
    if size < 1_000:
        return count_text(size, "byte")
    amount, unit = float(size), 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1_000, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 file", "1,204 files"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_path(path: str) -> str:
    """Return a path as it is shown in a sentence: bounded, what cannot be seen escaped."""
    return display_path(shorten_path(path))


def missed(coverage: Coverage, how: str) -> str:
    """Return what a search left out: "; not searched: 2 files and 1 directory (a, b, c/)"."""
    parts = [count_text(coverage.missed_files, "file")] if coverage.missed_files else []
    if coverage.missed_directories:
        parts.append(count_text(coverage.missed_directories, "directory", "directories"))
    if not parts:
        return ""
    names = [format_path(each) for each in coverage.missed_paths[:_NAMED]]
    more = ", ..." if coverage.missed_files + coverage.missed_directories > len(names) else ""
    return f"; {how}: {' and '.join(parts)} ({', '.join(names)}{more})"


def join_words(words: Iterable[str], conjunction: str = "or") -> str:
    """Return words as a sentence has them: "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def hint(text: str, call: str | None) -> str:
    """Return a hint that ends in a call, or nothing where no tool can be called so."""
    return "" if call is None else f"{text} {call}"


def fit(parts: Iterable[str], foot: str, budget: int) -> str:
    """Return a message of at most `budget` characters; its foot stays if there is any room."""
    text = "\n".join([*parts, foot] if foot else parts)
    if len(text) <= budget:
        return text
    room = budget - len(foot) - 1
    return f"{text[:room]}\n{foot}" if foot and room > 0 else text[:budget]


def room_in(budget: int, margin: int) -> int:
    """Return the characters left for content; half of a small budget at least."""
    return max(budget - margin, budget // 2)


def take_lines(lines: Iterable[str], room: int) -> list[str]:
    """Return the first lines that fit into `room` characters with their line ends."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept


CHUNK = 128 * 1024
"""How much is read at once."""
_REACH = 256 * 1024 * 1024  # bytes in which the lines of one page must end


class RawLine(NamedTuple):
    """A line: its bytes without the end, where it begins, and how many bytes are left out.

    If it is `endless`, its end was not reached, and at least so many are left out.
    """

    data: bytes
    start: int
    left_out: int = 0
    ended: bool = True
    endless: bool = False


class WorkspaceContent(Content):
    """The bytes of a file, read through the protocol as they are asked for."""

    __slots__ = ("_filesystem", "_path", "_size")

    def __init__(self, filesystem: Filesystem, path: str, size: int) -> None:
        """Read `path`, which has `size` bytes."""
        self._filesystem = filesystem
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        return self._filesystem.read_bytes(self._path, offset=offset, limit=size).content


def line_start(filesystem: Filesystem, path: str, line: int, size: int) -> LineStart:
    """Return the byte at which `line`, counted from 0, begins, and how many lines there are."""
    if isinstance(filesystem, LineIndexed):
        return filesystem.line_start(path, line)
    try:
        with early_time_limit(DEFAULT_LIMITS.max_read_seconds):
            return find_line(WorkspaceContent(filesystem, path, size), line)
    except TimeLimitError:
        raise page_timeout_error(path, line, size) from None


def find_line(content: Content, line: int) -> LineStart:
    """Return the byte at which `line` of `content` begins, and how many lines there are."""
    index = LineIndex()
    start = index.find(line, content) or 0
    return LineStart(start, *index.count(content, start + DEFAULT_LIMITS.max_count_bytes))


def lines_from(content: Content, start: int, keep: int, reach: int = _REACH) -> Iterator[RawLine]:
    """Yield the lines from byte `start` on, of each at most `keep` bytes.

    No more than `reach` bytes are read: a line that does not end in them is the last one.
    """
    at = begin = start
    kept, left_out = b"", 0
    while chunk := content.read(at, CHUNK):
        if at - start >= reach:
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
"""Characters of a difference that a model is shown."""
_MAX_LINES = 200  # lines of a difference: most of what is new the model has just sent
_CONTEXT = 3
_NOTE = 300  # characters kept for the line about what is not shown
_OVERLOOKED = {
    MatchLevel.LINE_ENDINGS: "line endings differ",
    MatchLevel.TRAILING_SPACE: "blanks at the ends of lines differ",
    MatchLevel.INDENTATION: "the indentation differs",
    MatchLevel.UNICODE: "look-alike characters (quotes, dashes, blanks) differ",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """How one file differs from what it was.

    Args:
        text: A unified diff; bytes that are not UTF-8 are escaped.
        added: How many lines are new.
        removed: How many lines are gone.
        places: How many runs of lines differ.
    """

    text: str
    added: int = 0
    removed: int = 0
    places: int = 0


def difference(
    path: str, old: bytes | None, new: bytes | None, *, source: str | None = None
) -> Difference:
    """Return how a file differs; None stands for no file, `source` is where it was before."""
    before, after = old or b"", new or b""
    names = quote_path(b"a/" + encode_path(source or path)), quote_path(b"b/" + encode_path(path))
    if b"\0" in before or b"\0" in after or max(len(before), len(after)) > MAX_TEXT:
        return Difference(_decoded(b"Binary files %b and %b differ\n" % names))
    lines, new_lines = split_lines(before), split_lines(after)
    blocks = changed_blocks(lines, new_lines)
    parts = [*_header(path, old, new, source, changed=bool(blocks))]
    parts += hunks(lines, new_lines, blocks, _CONTEXT)
    return Difference(
        _decoded(b"".join(parts)),
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
        yield b"--- %b\n" % _label(first, old)
        yield b"+++ %b\n" % _label(second, new)


def _label(name: bytes, data: bytes | None) -> bytes:
    if data is None:
        return b"/dev/null"
    # git ends a name with blanks by a tab, or the last word could be taken for a date
    return quote_path(name) + (b"\t" if b" " in name else b"")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def message(
    context: HandlerContext,
    head: Sequence[str],
    diff: str,
    *,
    rest: str | None,
    limit: int = MAX_DIFF,
) -> str:
    """Return what a model is told: lines, and a difference cut to what may be shown.

    Args:
        context: Has the budget.
        head: The lines that come first.
        diff: The difference.
        rest: How to see what is not shown.
        limit: Characters of the difference at most.
    """
    text = _fitting("\n".join(line for line in head if line), context.settings.budget)
    room = min(limit, context.settings.budget - len(text) - _NOTE)
    if not diff:
        return text
    kept, left = _cut(diff, room, context.settings.max_line_characters)
    if left:
        how = "" if rest is None else f"; {rest}"
        kept += f"[{left} more lines of the difference are not shown{how}]"
    return _fitting(f"{text}\n{kept}".rstrip("\n"), context.settings.budget)


def rest_hint(context: HandlerContext, path: str, *, applied: bool) -> str | None:
    """Return how to see what is not shown of a change."""
    if not applied:
        return "to see all of it, ask for less at once"
    how = context.dialect.format_call(ReadFileParams(path))
    return None if how is None else f"to see how {format_path(path)} is now: {how}"


def line_count(data: bytes) -> int:
    """Return how many lines there are."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def match_note(level: MatchLevel) -> str:
    """Return a sentence about what had to be overlooked; empty if nothing had."""
    what = _OVERLOOKED.get(level)
    return "" if what is None else f"The text matched although {what}"


def _fitting(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    note = "\n[shortened]"
    return text[: max(room - len(note), 0)] + note[:room]


def _cut(diff: str, room: int, width: int) -> tuple[str, int]:
    """Return the lines that fit, long ones clipped, and how many do not."""
    lines = diff.removesuffix("\n").split("\n")
    kept: list[str] = []
    for number, line in enumerate(lines[:_MAX_LINES]):
        if len(line) > width:
            line = f"{line[:width]}... ({len(line) - width} more characters)"
        room -= len(line) + 1
        if room < 0:
            return "".join(kept), len(lines) - number
        kept.append(line + "\n")
    return "".join(kept), len(lines) - len(kept)
