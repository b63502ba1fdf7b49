"""Place the hunks of a file: find each one's lines, and choose one match by its anchors.

An anchor, the text after `@@`, stands for a block of lines, or for the section that git
would head with it. A block lasts while lines are indented deeper than its first one.
Closing brackets, branches, labels, comments and lines inside a multi-line string do not end it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from weakincentives.contrib.tools.editing import EditError, MatchLevel
from weakincentives.contrib.tools.editing.confusables import fold_confusables, indent_of
from weakincentives.contrib.tools.editing.engine import build_replacement
from weakincentives.contrib.tools.editing.match import (
    Document,
    Match,
    Matches,
    Query,
    excerpt,
    find_matches,
    format_line_numbers,
    split_lines,
    unify_line_ends,
)
from weakincentives.contrib.tools.editing.suggestions import describe_closest
from weakincentives.contrib.tools.patching.hunks import PatchError, PatchHunk

_CONTINUES_BLOCK = re.compile(
    r"[{})\]#]|</|//|/\*|\*/|\w+:$"
    r"|(?:else|elif|elsif|except|finally|catch|rescue|ensure|case|default|end)\b"
)
_HEADING = re.compile(r"[A-Za-z_$]")  # what git takes for the heading of a hunk
_TAB_WIDTH = 8
_MAX_HEADINGS = 100  # a line that occurs more often is not a useful heading
_MAX_VISITED = 200_000  # lines in the blocks of one anchor
_MAX_MATCHES = 10_000
# Only syntax that looks the same in all languages, since the language is not known:
# triple quotes, backticks, here-documents and block comments.
_TOKEN = re.compile(
    r"""
    (?P<quotes>\"{3}|'{3}|`)
    | (?<!\S)(?P<comment>/\*)
    | <<[-~]?(?P<mark>["']?)(?P<word>[A-Za-z_][\w.-]*)(?P=mark)(?=\W|$)
    | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*'  # strings that end on their line
    | (?<!\S)(?:\#|//).*  # comments
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class PlacedHunk:
    """A hunk as a change to a range of the text."""

    start: int
    end: int
    new: str
    level: MatchLevel


@dataclass(frozen=True, slots=True)
class Scope:
    """A line and the block that it starts, if it starts one; otherwise the line alone."""

    start: int
    stop: int
    is_block: bool


def place_hunks(text: str, hunks: Sequence[PatchHunk], *, literal: bool) -> tuple[str, MatchLevel]:
    """Return a text with hunks applied, and the most tolerant match level that was needed.

    All hunks refer to this text, not to each other's result. If `literal`, their line endings and
    line numbers are exact, as in diffs written by programs.

    Raises:
        PatchError: A hunk has no match, or several; the message says which hunk.
    """
    placement = Placement(text, literal=literal)
    for number, hunk in enumerate(hunks, 1):
        try:
            placement.place(hunk)
        except (PatchError, EditError) as error:
            which = f"Hunk {number} of {len(hunks)}" if len(hunks) > 1 else "Hunk"
            raise PatchError(f"{which}: {error}") from None
    level = max((each.level for each in placement.placed), key=lambda each: each.rank)
    return placement.content(), level


class Placement:
    """The hunks of one file, placed one by one in its original text."""

    def __init__(self, text: str, *, literal: bool) -> None:
        """Place hunks in `text`."""
        self._document = Document(text)
        self._literal = literal
        self._reached = 0  # the line after the last hunk
        self._drift = 0  # lines between where the last hunk says it is and where it was found
        self.placed: list[PlacedHunk] = []

    def place(self, hunk: PatchHunk) -> None:
        """Find the place of a hunk."""
        placed = self._match(hunk) if hunk.old else self._insert(hunk)
        if self._document.text[placed.start : placed.end] == placed.new:
            raise PatchError(f"Nothing would change: {excerpt(hunk.new_text)}")
        self.placed.append(placed)

    def content(self) -> str:
        """Return the text with every hunk applied."""
        pieces: list[str] = []
        at = 0
        for each in sorted(self.placed, key=lambda each: (each.start, each.end)):
            if each.start < at:
                number = self._document.line_number_at(each.start)
                raise PatchError(
                    f"Two hunks change the same lines, near line {number}\n"
                    "Combine them into one hunk"
                )
            pieces += (self._document.text[at : each.start], each.new)
            at = each.end
        return "".join([*pieces, self._document.text[at:]])

    def _match(self, hunk: PatchHunk) -> PlacedHunk:
        query = self._build_query(hunk)
        found = find_matches(self._document, query, limit=_MAX_MATCHES)
        if found is None:
            raise PatchError(
                f"Lines were not found: {excerpt(hunk.old_text)}\n"
                f"{describe_closest(self._document, query)}"
            )
        match = self._choose(hunk, found)
        first = self._document.line_at(match.start)
        if hunk.line is not None:
            self._drift = first - hunk.line
        self._reached = first + len(hunk.old)
        new = build_replacement(self._document, match, query)
        return self._trim_context(match, new, found.level)

    def _build_query(self, hunk: PatchHunk) -> Query:
        if not hunk.old_ends and self._document.ends_with_newline:
            # the file has the final newline that the patch says is missing
            new = hunk.new_text.removesuffix("\n") + "\n"
            return Query(hunk.old_text + "\n", new, whole_lines=True)
        return Query(hunk.old_text, hunk.new_text, whole_lines=True, literal=self._literal)

    def _insert(self, hunk: PatchHunk) -> PlacedHunk:
        """Return the place of a hunk without context lines."""
        document = self._document
        at = len(document.text)
        if not document.lines:
            return PlacedHunk(at, at, hunk.new_text, MatchLevel.EXACT)
        if not hunk.at_end:
            anchors = find_scopes(document, hunk.anchors) if hunk.anchors else []
            if len(anchors) != 1:
                raise PatchError(
                    "Hunk has only added lines, so its place is unknown: "
                    f"{excerpt(hunk.new_text)}\nInclude some unchanged lines around the change"
                )
            at = document.line_stop(anchors[0].start)
        ending = document.ending_at(at) or "\n"
        new = unify_line_ends(hunk.new_text).replace("\n", ending)
        if not document.is_line_start(at):
            new = ending + new.removesuffix(ending)
        return PlacedHunk(at, at, new, MatchLevel.EXACT)

    def _choose(self, hunk: PatchHunk, found: Matches) -> Match:
        matches = self._filter_at_end(hunk, found.matches)
        if self._literal:
            filters = (self._filter_by_line, self._filter_by_heading, self._filter_after_last)
        else:
            matches = self._filter_by_anchors(hunk, matches)
            filters = (self._filter_by_line, self._filter_after_last)
        for narrow in filters:
            if len(matches) > 1:
                matches = narrow(hunk, matches) or matches
        if len(matches) == 1 and not found.more:
            return matches[0]
        raise PatchError(
            f"Lines were found {len(matches)} times, "
            f"at {self._format_lines(matches)}: {excerpt(hunk.old_text)}\n"
            "Include more surrounding lines so that only one place matches, "
            "or add '@@' with the first line of its function or class"
        )

    def _filter_at_end(self, hunk: PatchHunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches at the end of the text, if the hunk says that it is there."""
        if not hunk.at_end and hunk.old_ends and hunk.new_ends:
            return matches
        size = len(self._document.text)
        last = [match for match in matches if self._document.line_stop(self._last(match)) == size]
        if last or (hunk.old_ends and hunk.new_ends):
            return last or matches
        raise PatchError(
            f"Lines are not at the end of the file, as the patch says: {excerpt(hunk.old_text)}\n"
            f"They were found at {self._format_lines(matches)}"
        )

    def _filter_by_anchors(self, hunk: PatchHunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches where the lines after `@@` point to.

        An anchor may enclose the change, or just be above it, like git's hunk headings.
        """
        scopes = find_scopes(self._document, hunk.anchors) if hunk.anchors else []
        if not scopes:
            return matches
        near = self._select_near(scopes, matches)
        if near:
            return near
        first = min(scope.start for scope in scopes)
        below = [match for match in matches if self._document.line_at(match.start) > first]
        if not below:
            raise PatchError(
                f"Lines were not found below {hunk.anchors[-1]!r}: {excerpt(hunk.old_text)}\n"
                f"They were found at {self._format_lines(matches)}. Correct the line after '@@', "
                "or leave it out if that is the right place"
            )
        # below a line that does not start a block, the nearest match is meant
        return below if len(scopes) > 1 or scopes[0].is_block else below[:1]

    def _filter_by_heading(self, hunk: PatchHunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches in the block of git's hunk heading, which may be another block."""
        scopes = find_scopes(self._document, hunk.anchors) if hunk.anchors else []
        return self._select_inside([scope for scope in scopes if scope.is_block], matches)

    def _filter_by_line(self, hunk: PatchHunk, matches: Sequence[Match]) -> Sequence[Match]:
        if hunk.line is None:
            return ()
        lines = {self._document.line_at(match.start): match for match in matches}
        expected = (hunk.line + self._drift, hunk.line)
        return [lines[line] for line in expected if line in lines][:1]

    def _filter_after_last(self, _: PatchHunk, matches: Sequence[Match]) -> Sequence[Match]:
        return [match for match in matches if self._document.line_at(match.start) >= self._reached]

    def _select_inside(self, scopes: Sequence[Scope], matches: Sequence[Match]) -> list[Match]:
        """Return the matches that have a line in the block of a scope."""
        return [
            match
            for match in matches
            if any(
                self._last(match) >= scope.start
                and self._document.line_at(match.start) < scope.stop
                for scope in scopes
            )
        ]

    def _select_near(self, scopes: Sequence[Scope], matches: Sequence[Match]) -> list[Match]:
        """Return the matches inside a scope, or in a section that git would head with it."""
        inside = {match.start for match in self._select_inside(scopes, matches)}
        sections = find_sections(self._document, scopes)
        starts = [(match, self._document.line_at(match.start)) for match in matches]
        return [
            match
            for match, line in starts
            if match.start in inside or any(line in section for section in sections)
        ]

    def _last(self, match: Match) -> int:
        return self._document.line_at(max(match.end - 1, match.start))

    def _format_lines(self, matches: Sequence[Match]) -> str:
        return format_line_numbers([self._document.line_at(match.start) + 1 for match in matches])

    def _trim_context(self, match: Match, new: str, level: MatchLevel) -> PlacedHunk:
        """Return the change without its context lines, which other hunks may include too."""
        old = split_lines(self._document.text[match.start : match.end])
        lines = split_lines(new)
        shorter = min(len(old), len(lines))
        start = 0
        while start < shorter and old[start] == lines[start]:
            start += 1
        end = 0
        while end < shorter - start and old[-1 - end] == lines[-1 - end]:
            end += 1
        return PlacedHunk(
            match.start + sum(map(len, old[:start])),
            match.end - sum(map(len, old[len(old) - end :])),
            "".join(lines[start : len(lines) - end]),
            level,
        )


def find_scopes(document: Document, anchors: Sequence[str]) -> list[Scope]:
    """Return the scopes of the last anchor, inside those before it; empty if not found.

    An anchor is searched in the blocks of the anchor before it, and if it is in none of
    them, anywhere below.
    """
    outermost, *inner = anchors
    size = len(document.lines)
    scopes = _build_scopes(document, _find_anchor(document, outermost, [range(size)]))
    for anchor in inner:
        inside = [range(scope.start + 1, scope.stop) for scope in scopes]
        below = [range(scope.start + 1, size) for scope in scopes[:1]]
        found = _find_anchor(document, anchor, inside) or _find_anchor(document, anchor, below)
        scopes = _build_scopes(document, found)
    return scopes


def find_sections(document: Document, scopes: Sequence[Scope]) -> list[range]:
    """Return the lines at which git would give a scope's first line as the hunk heading."""
    if len(scopes) > _MAX_HEADINGS:
        return []
    return [range(each.start + 1, _next_heading(document, each.start) + 1) for each in scopes]


def _next_heading(document: Document, line: int) -> int:
    """Return the next line that could replace a line as heading, or the last line."""
    depth = _depth(document.lines[line])
    for number in range(line + 1, len(document.lines)):
        text = document.lines[number]
        if _HEADING.match(text.lstrip()) and _depth(text) <= depth:
            return number
    return len(document.lines) - 1


def _find_anchor(document: Document, anchor: str, ranges: Sequence[range]) -> list[int]:
    lines = (line for numbers in ranges for line in _match_anchor(document, anchor, numbers))
    return list(dict.fromkeys(lines))


def _match_anchor(document: Document, anchor: str, numbers: range) -> list[int]:
    """Return the lines equal to the anchor, or else those that start with it."""
    wanted = _collapse_spaces(anchor)
    lines = [(number, _collapse_spaces(document.lines[number])) for number in numbers]
    same = [number for number, line in lines if line == wanted]
    return same or [number for number, line in lines if line.startswith(wanted)]


def _build_scopes(document: Document, lines: Sequence[int]) -> list[Scope]:
    """Return the scopes of lines; none if there are too many to be of use."""
    scopes: list[Scope] = []
    visited = 0
    for line in lines:
        stop, is_block = _find_block(document, line)
        visited += stop - line
        if visited > _MAX_VISITED:
            return []
        scopes.append(Scope(line, stop if is_block else line + 1, is_block))
    return scopes


def _find_block(document: Document, line: int) -> tuple[int, bool]:
    """Return the line after the block of a line, and whether there is such a block."""
    depth = _depth(document.lines[line])
    is_block = False
    for number, is_string in _non_blank_lines(document, line):
        text = document.lines[number]
        if is_string or _depth(text) > depth:
            is_block = is_block or not is_string
        elif _depth(text) < depth or not _CONTINUES_BLOCK.match(text.strip()):
            return number, is_block
    return len(document.lines), is_block


def _non_blank_lines(document: Document, line: int) -> Iterator[tuple[int, bool]]:
    """Yield the lines below a line that are not blank, and whether they start in a string."""
    in_strings = scan_strings(document.lines, line)
    next(in_strings)
    for number, is_string in enumerate(in_strings, line + 1):
        if document.lines[number].strip():
            yield number, is_string


def _depth(line: str) -> int:
    return len(fold_confusables(indent_of(line)).expandtabs(_TAB_WIDTH))


def _collapse_spaces(line: str) -> str:
    return " ".join(fold_confusables(line).split())


def scan_strings(lines: Sequence[str], start: int) -> Iterator[bool]:
    """Yield for each line from `start` on whether it starts inside a multi-line string.

    A string that is never closed does not count.
    """
    ends = _StringEnds(lines)
    number, column = start, 0
    yield False
    while number < len(lines):
        opener = _find_opener(lines[number], column)
        end = None if opener is None else ends.find(number, opener)
        if opener is not None and end is None:
            column = opener.end()
            continue
        stop, column = end or (number + 1, 0)
        yield from (end is not None for _ in range(number + 1, min(stop + 1, len(lines))))
        number = stop


class _StringEnds:
    """Finds where multi-line strings end; remembers delimiters that have no end."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._unclosed: set[str] = set()

    def find(self, number: int, opener: re.Match[str]) -> tuple[int, int] | None:
        """Return the line and column where a string ends; None if it does not."""
        if opener["word"]:
            last = self._heredoc_end(number, opener["word"])
            return None if last is None else (last, len(self._lines[last]))
        delimiter = opener["quotes"] or "*/"
        if delimiter in self._unclosed:
            return None
        return self._find_delimiter(delimiter, number, opener.end())

    def _find_delimiter(self, delimiter: str, number: int, column: int) -> tuple[int, int] | None:
        for at in range(number, len(self._lines)):
            found = self._lines[at].find(delimiter, column)
            if found >= 0:
                return at, found + len(delimiter)
            column = 0
        self._unclosed.add(delimiter)
        return None

    def _heredoc_end(self, number: int, word: str) -> int | None:
        if self._last_lines.get(word, -1) <= number:
            return None
        return next(at for at in count(number + 1) if self._lines[at].strip() == word)

    @cached_property
    def _last_lines(self) -> dict[str, int]:
        return {line.strip(): number for number, line in enumerate(self._lines)}


def _find_opener(line: str, column: int) -> re.Match[str] | None:
    """Return the token that opens a string which may continue on the next line."""
    for token in _TOKEN.finditer(line, column):
        if token["quotes"] or token["comment"] or token["word"]:
            return token
    return None
