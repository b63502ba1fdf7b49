r"""Regular expression search in files with RE2, in linear time for any pattern.

RE2 searches whole blocks, so lines without a match cost nothing. The results are those of a
search line by line: RE2's `never_nl` option excludes line ends from matches, and every anchor
(`^`, `$`, `\A`, `\z`) is rewritten to a line anchor. `\r\n` becomes `\n` where it could make a
difference.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import re2  # pyright: ignore[reportMissingTypeStubs] # it has none

from weakincentives.errors import WinkError
from weakincentives.filesystem.limits import Limits
from weakincentives.filesystem.text import (
    BINARY_PREFIX,
    SNIFF_LENGTH,
    BytesContent,
    Content,
    is_binary,
)
from weakincentives.posix import check_time

_BLOCK_SIZE = 8 * 1024 * 1024
_MAX_MEMORY = 8 * 1024 * 1024
_MAX_PROGRAM = 10_000
# bytes times instructions in one call: a fifth of a second in RE2's slow mode
_MAX_WORK = 20_000_000
_CACHE_SIZE = 32  # each may hold _MAX_MEMORY
_MAX_EXCERPT = 80
_Token: TypeAlias = tuple[str, str]
_TOKEN = re.compile(
    r"(?P<quoted>\\Q.*?(?:\\E|\Z))"
    r"|(?P<edge>\\[Az]|[\^$])"
    r"|(?P<escaped>\\[^A-Za-z0-9])"
    r"|(?P<other>\\x\{[^}]*\}|\\x..|\\[pP]\{[^}]*\}|\\[pP].|\\[0-7]{1,3}|\\."
    r"|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\.)"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<open>\((?:\?P?<\w+>|\?:)?)(?!\?)"
    r"|(?P<flags>\(\?[a-zA-Z-]*[:)])"
    r"|(?P<close>\))"
    r"|(?P<either>\|)"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_LINE_EDGES = {"^": "(?m:^)", r"\A": "(?m:^)", "$": "(?m:$)", r"\z": "(?m:$)"}
_HINTS = (
    (r"\(\?<?[=!]", "lookaround is not supported, match the text around it too or search twice"),
    (r"\\[1-9gk]|\(\?P", "backreferences are not supported, write the repeated text out"),
    (
        r"\(\?>|[*+?}]\+",
        "possessive and atomic groups are not needed: matching is linear without them",
    ),
    (r"\(\?\(", "conditions are not supported, use alternatives with |"),
    (r"\(\?[a-z]*x", "the x flag is not supported, write the pattern without whitespace"),
    (r"escape sequence: \\Z", r"use \z or $ for the end of a line"),
    (r"escape sequence: \\u", r"write \x{...} or the character itself"),
    (
        r"repetition size|too large",
        "use smaller repetition counts: at most 1000, nested counts multiplied",
    ),
)


class InvalidRegexError(WinkError, ValueError):
    """The text is not a regular expression that can be searched for in linear time."""


@dataclass(frozen=True, slots=True)
class LineMatch:
    """The first match in a line; lines count from 1, positions are in `line_content`."""

    line_number: int
    line_content: str
    match_start: int
    match_end: int


_RE2: Any = re2
_Find: TypeAlias = Callable[[bytes, int, int], tuple[int, int] | None]
"""Finds the first match from the start of a line on, in data up to an end; the rest is context."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Whole lines, or the beginning of a very long one, to search up to `end`."""

    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class _Hit:
    """A matching line, the number of lines above it in the block, and the span of the match."""

    above: int
    line: bytes
    start: int
    end: int


class Searcher:
    """A compiled pattern."""

    __slots__ = ("_ends_matter", "_find", "_width")

    def __init__(self, find: _Find, *, ends_matter: bool, width: int) -> None:
        """Search with `find`; keep up to `width` characters of a line."""
        self._find = find
        self._ends_matter = ends_matter
        self._width = width

    def lines(self, content: Content) -> Iterator[LineMatch]:
        """Yield the matching lines of `content` as they are found; none if it is binary."""
        if content.size > _BLOCK_SIZE:
            head = content.read(0, SNIFF_LENGTH)
            return iter(()) if is_binary(head) else self._lines(content)
        data = content.read(0, _BLOCK_SIZE)
        if data.find(b"\0", 0, BINARY_PREFIX) >= 0:
            return iter(())
        # most files have no match: one search of the bytes is all they cost
        if not self._ends_matter and self._find(data, 0, len(data)) is None:
            return iter(())
        return iter(()) if is_binary(data) else self._lines(BytesContent(data))

    def _lines(self, content: Content) -> Iterator[LineMatch]:
        number, previous = 1, b""
        for block in _blocks(content):
            check_time("Search")
            number += previous.count(b"\n")
            previous = block.data
            for hit in self._hits(block):
                yield _line_match(hit, number, self._width)

    def _hits(self, block: _Block) -> Iterator[_Hit]:
        span = None
        if not self._ends_matter:
            span = self._find(block.data, 0, block.end)
            if span is None:
                return
        if b"\r" in block.data:
            block, span = _normalize_line_ends(block), None
        data, end = block.data, block.end
        span = span or self._find(data, 0, end)
        above = counted = 0
        while span is not None:
            begin = data.rfind(b"\n", 0, span[0]) + 1
            stop = data.find(b"\n", span[1], end)
            stop = end if stop < 0 else stop
            above += data.count(b"\n", counted, begin)
            counted = begin
            yield _Hit(above, data[begin:stop], span[0] - begin, span[1] - begin)
            span = self._find(data, stop + 1, end) if stop < end else None


@lru_cache(maxsize=_CACHE_SIZE)
def compile_regex(pattern: str, limits: Limits) -> Searcher:
    """Return the compiled form of `pattern`, in RE2 syntax.

    Raises:
        InvalidRegexError: The pattern is too long, too large, or not RE2 syntax.
    """
    if len(pattern) > limits.max_pattern_length:
        raise InvalidRegexError(
            f"Invalid regex: longer than {limits.max_pattern_length} characters: "
            f"{pattern[:_MAX_EXCERPT]!r}..."
        )
    _compile_re2(pattern, pattern)  # first, so that errors quote the pattern as written
    tokens = [(found.lastgroup or "", found.group()) for found in _TOKEN.finditer(pattern)]
    if ("other", r"\C") in tokens:
        raise InvalidRegexError(rf"Invalid regex: \C matches single bytes, use a dot: {pattern!r}")
    find = _finder(tokens, pattern)
    ends_matter = any(kind == "edge" and text in {"$", r"\z"} for kind, text in tokens)
    return Searcher(find, ends_matter=ends_matter, width=limits.max_line_length)


def _literal_finder(text: bytes) -> _Find:
    """Return what finds literal text without line ends."""

    def find(data: bytes, start: int, end: int) -> tuple[int, int] | None:
        at = data.find(text, start, end)
        return None if at < 0 else (at, at + len(text))

    return find


class _RegexFinder:
    """Finds with RE2, in parts of bounded size, from the first line that contains `required`."""

    __slots__ = ("_part", "_regex", "_required_literal")

    def __init__(self, regex: Any, required: bytes) -> None:
        self._regex = regex
        self._required_literal = required
        self._part = min(_BLOCK_SIZE, _MAX_WORK // regex.programsize)

    def find(self, data: bytes, start: int, end: int) -> tuple[int, int] | None:
        while start <= end:
            if self._required_literal:
                at = data.find(self._required_literal, start, end)
                if at < 0:
                    return None
                start = max(start, data.rfind(b"\n", start, at) + 1)
            stop, following = self._part_of(data, start, end)
            found = self._regex.search(data, start, stop)
            if found is not None:
                return found.span()
            check_time("Search")
            start = following
        return None

    def _part_of(self, data: bytes, start: int, end: int) -> tuple[int, int]:
        """Return where the part from `start` ends and where the next one starts."""
        limit = start + self._part
        if limit >= end:
            return end, end + 1
        stop = data.rfind(b"\n", start, limit)
        if stop >= 0:
            return stop, stop + 1
        # parts of a very long line overlap, so that only giant matches are cut
        return limit, limit - self._part // 4


def _finder(tokens: Sequence[_Token], pattern: str) -> _Find:
    if tokens and all(kind in {"plain", "escaped"} for kind, _ in tokens):
        literal = "".join(text[-1] for _, text in tokens)
        if not {"\r", "\n"} & set(literal):
            return _literal_finder(literal.encode())
    by_line = "".join(_LINE_EDGES[text] if kind == "edge" else text for kind, text in tokens)
    return _RegexFinder(_compile_re2(by_line, pattern), _required_literal(tokens)).find


def _required_literal(tokens: Sequence[_Token]) -> bytes:
    """Return literal text that every match contains; empty if unknown."""
    runs = [""]
    depth = 0
    for kind, text in tokens:
        if kind == "flags" or (kind == "either" and depth == 0):
            return b""
        depth += (kind == "open") - (kind == "close")
        if depth == 0 and kind in {"plain", "escaped"}:
            runs[-1] += text[-1]
            continue
        if kind == "repeat" and text[0] != "+":
            runs[-1] = runs[-1][:-1]
        runs.append("")
    longest = max(runs, key=len)
    return longest.encode() if len(longest) > 1 else b""


def _compile_re2(regex: str, pattern: str) -> Any:
    """Compile `regex`, which was derived from `pattern`."""
    options = _RE2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.never_capture = True
    options.never_nl = True
    try:
        compiled = _RE2.compile(regex, options)
    except _RE2.error as error:
        reason: bytes = error.args[0]
        raise _regex_error(reason.decode(errors="replace"), pattern) from error
    except UnicodeEncodeError as error:
        raise _regex_error("a lone surrogate cannot occur in text", pattern) from error
    finally:
        _RE2.purge()  # compile_regex has a smaller cache of its own
    if compiled.programsize > _MAX_PROGRAM:
        raise _regex_error("pattern too large", pattern)
    return compiled


def _regex_error(reason: str, pattern: str) -> InvalidRegexError:
    hint = next((f" ({hint})" for found, hint in _HINTS if re.search(found, reason)), "")
    return InvalidRegexError(
        f"Invalid regex: {reason[:_MAX_EXCERPT]}{hint}: {pattern[:_MAX_EXCERPT]!r}"
    )


def _blocks(content: Content) -> Iterator[_Block]:
    offset, size = 0, content.size
    while offset < size:
        data = content.read(offset, min(_BLOCK_SIZE, size - offset))
        if not data:
            return
        cut = len(data) if offset + len(data) >= size else data.rfind(b"\n") + 1
        if cut:
            offset += cut
            data = data[:cut]
            yield _Block(data, cut - data.endswith(b"\n"))
        else:
            yield _Block(data + b"\n", _character_at(data, len(data) - 1))
            offset = _next_line(content, offset + len(data), size)


def _next_line(content: Content, offset: int, size: int) -> int:
    """Return the offset of the line after the one that contains `offset`."""
    while offset < size:
        check_time("Search")
        offset = content.next_data(offset)
        data = content.read(offset, min(_BLOCK_SIZE, size - offset))
        if not data:
            break
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(data)
    return size


def _character_at(data: bytes, at: int) -> int:
    r"""Return the start of the character that contains the byte `at`.

    RE2 matches `\B` between the bytes of one character.
    """
    for start in range(at, max(at - 4, -1), -1):
        if start == len(data) or data[start] & 0xC0 != 0x80:
            return start
    return at


def _normalize_line_ends(block: _Block) -> _Block:
    gone = block.data.count(b"\r\n", 0, block.end + 1)
    return _Block(block.data.replace(b"\r\n", b"\n"), block.end - gone)


def _line_match(hit: _Hit, first_number: int, width: int) -> LineMatch:
    """Return the line, or `width` characters of it around the match."""
    if len(hit.line) <= width and hit.line.isascii():
        return LineMatch(first_number + hit.above, hit.line.decode(), hit.start, hit.end)
    reach = 4 * width + 4  # bytes that contain at least `width` whole characters
    line, start, end = (
        hit.line,
        _character_at(hit.line, hit.start),
        _character_at(hit.line, hit.end),
    )
    before = _text(line[max(0, start - reach) : start])
    matched = _text(line[start : min(end, start + reach)])[:width]
    after = _text(line[end : end + reach])
    room = width - len(matched)
    shown_before = min(len(before), max(room // 2, room - len(after)))
    shown = before[len(before) - shown_before :] + matched + after[: room - shown_before]
    return LineMatch(first_number + hit.above, shown, shown_before, shown_before + len(matched))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
