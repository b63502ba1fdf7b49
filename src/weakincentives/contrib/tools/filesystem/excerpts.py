"""Matches as lines with what is around them, in the form that grep prints."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from weakincentives.contrib.tools.filesystem.lines import RawLine, line_start, lines_from
from weakincentives.contrib.tools.filesystem.matching import FileHits
from weakincentives.contrib.tools.filesystem.opened import OpenedFile, open_file
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem import DEFAULT_LIMITS, GrepMatch
from weakincentives.filesystem.paths import shown

_GONE = "..."
_WINDOW = 500  # characters shown of a line that is too long, around the match


@dataclass(frozen=True, slots=True)
class Context:
    """How many lines to show before and after a match."""

    before: int = 0
    after: int = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.before or self.after)


@dataclass(frozen=True, slots=True)
class ExcerptLine:
    """A line of an excerpt, and the match that is in it, if there is one."""

    text: str
    match: GrepMatch | None = None


def excerpt(found: FileHits, context: Context, bench: Workbench) -> Iterator[ExcerptLine]:
    """Yield the matches of a file under its name; matches have `:`, lines around them `-`."""
    yield ExcerptLine(shown(found.path))
    width = bench.settings.max_line_characters
    if not context:
        for match in found.matches:
            yield _matched(match, width)
        return
    by_line = {match.line_number: match for match in found.matches}
    for number, (first, last) in enumerate(_groups(found.matches, context)):
        if number:
            yield ExcerptLine("--")
        around = _around(found.path, first, last, bench)
        for line in range(first, last + 1):
            if line in by_line:
                yield _matched(by_line[line], width)
            elif line in around:
                yield ExcerptLine(f"{line}-{around[line]}")


def _groups(matches: Iterable[GrepMatch], context: Context) -> list[tuple[int, int]]:
    """Return first and last lines of the groups; those that touch are one."""
    groups: list[tuple[int, int]] = []
    for match in matches:
        first = max(match.line_number - context.before, 1)
        last = match.line_number + context.after
        if groups and first <= groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], max(last, groups[-1][1]))
        else:
            groups.append((first, last))
    return groups


def _around(path: str, first: int, last: int, bench: Workbench) -> dict[int, str]:
    """Return the lines of a part of a file by number; none if it cannot be read any more."""
    width = bench.settings.max_line_characters
    with suppress(OSError):
        file = open_file(bench, path)
        start = _start(file, first - 1, bench)
        raw = islice(lines_from(file.content(bench), start, 4 * width + 4), last - first + 1)
        return {number: _text(line, width) for number, line in enumerate(raw, first)}
    return {}


def _start(file: OpenedFile, line: int, bench: Workbench) -> int:
    if file.whole:
        return _after_lines(file.head, line)
    return line_start(bench.filesystem, file.path, line, file.size).offset


def _after_lines(data: bytes, count: int) -> int:
    """Return where the line after `count` lines begins."""
    pieces = data.split(b"\n", count)
    return len(data) - len(pieces[-1]) if len(pieces) > count else len(data)


def _text(line: RawLine, width: int) -> str:
    text = line.data.removesuffix(b"\r").decode(errors="replace")
    return text[:width] + _GONE if len(text) > width or line.left_out else text


def _matched(match: GrepMatch, width: int) -> ExcerptLine:
    """Return a match; of a long line the part around it."""
    text = match.line_content
    if len(text) >= min(width + 1, DEFAULT_LIMITS.max_line_length):  # it may be a part already
        width = min(width, _WINDOW)
        begin = min(max(match.match_start - width // 4, 0), len(text) - width)
        text = _cut_out(text, begin, begin + width)
    return ExcerptLine(f"{match.line_number}:{text}", match)


def _cut_out(text: str, begin: int, end: int) -> str:
    return (_GONE if begin else "") + text[begin:end] + (_GONE if end < len(text) else "")


def fitting(lines: Iterable[ExcerptLine], room: int) -> tuple[Sequence[ExcerptLine], bool]:
    """Return the lines that fit into `room` characters, and whether these are all."""
    kept: list[ExcerptLine] = []
    for line in lines:
        room -= len(line.text) + 1
        if room < 0:
            return kept, False
        kept.append(line)
    return kept, True
