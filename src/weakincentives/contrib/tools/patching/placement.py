"""The parts of a text that a line after `@@` stands for: its block, its section, what follows.

A block goes on while lines are deeper than its first one. Lines that close it, branches,
labels, comments and the lines of a string that spans several do not end it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.editing import EditError, MatchLevel
from weakincentives.contrib.tools.editing.confusables import indent_of, plain
from weakincentives.contrib.tools.editing.errors import nearest_text
from weakincentives.contrib.tools.editing.format import excerpt, format_line_numbers
from weakincentives.contrib.tools.editing.match import Match, Matches, Wanted, find
from weakincentives.contrib.tools.editing.model import Document, ended_lines, unify_line_ends
from weakincentives.contrib.tools.editing.replace import replacement
from weakincentives.contrib.tools.patching.hunks import Hunk, PatchError
from weakincentives.contrib.tools.patching.strings import lines_in_strings

_GOES_ON = re.compile(
    r"[{})\]#]|</|//|/\*|\*/|\w+:$"
    r"|(?:else|elif|elsif|except|finally|catch|rescue|ensure|case|default|end)\b"
)
_HEADING = re.compile(r"[A-Za-z_$]")  # what git takes for the heading of a hunk
_TAB = 8
_MAX_HEADINGS = 100  # a line that is there more often is no heading
_MAX_VISITED = 200_000  # lines of the blocks of one anchor


@dataclass(frozen=True, slots=True)
class Scope:
    """A line and the block that it begins, if it begins one; otherwise the line alone."""

    start: int
    stop: int
    is_block: bool


def scopes_below(document: Document, anchors: Sequence[str]) -> list[Scope]:
    """Return what the last anchor stands for, below those before it; empty if not found.

    An anchor is looked for in the blocks that the anchors before it begin; if it is in none
    of them, anywhere below.
    """
    outermost, *inner = anchors
    size = len(document.lines)
    scopes = _scopes(document, _lines(document, outermost, range(size)))
    for anchor in inner:
        inside = [range(scope.start + 1, scope.stop) for scope in scopes]
        below = [range(scope.start + 1, size) for scope in scopes[:1]]
        found = _found(document, anchor, inside) or _found(document, anchor, below)
        scopes = _scopes(document, found)
    return scopes


def sections_of(document: Document, scopes: Sequence[Scope]) -> list[range]:
    """Return where hunks begin for which git gives the line of a scope as the heading."""
    if len(scopes) > _MAX_HEADINGS:
        return []
    return [range(each.start + 1, _next_heading(document, each.start) + 1) for each in scopes]


def _next_heading(document: Document, line: int) -> int:
    """Return the next line that could be a heading in place of a line, or the last one."""
    depth = _depth(document.lines[line])
    for number in range(line + 1, len(document.lines)):
        text = document.lines[number]
        if _HEADING.match(text.lstrip()) and _depth(text) <= depth:
            return number
    return len(document.lines) - 1


def _found(document: Document, anchor: str, ranges: Sequence[range]) -> list[int]:
    lines = (line for numbers in ranges for line in _lines(document, anchor, numbers))
    return list(dict.fromkeys(lines))


def _lines(document: Document, anchor: str, numbers: range) -> list[int]:
    """Return the lines that are the anchor, or else those that begin with it."""
    wanted = _words(anchor)
    lines = [(number, _words(document.lines[number])) for number in numbers]
    same = [number for number, line in lines if line == wanted]
    return same or [number for number, line in lines if line.startswith(wanted)]


def _scopes(document: Document, lines: Sequence[int]) -> list[Scope]:
    """Return the blocks of lines; none if the lines are so many that they tell nothing."""
    scopes: list[Scope] = []
    visited = 0
    for line in lines:
        stop, is_block = _block(document, line)
        visited += stop - line
        if visited > _MAX_VISITED:
            return []
        scopes.append(Scope(line, stop if is_block else line + 1, is_block))
    return scopes


def _block(document: Document, line: int) -> tuple[int, bool]:
    """Return the line that ends the block of a line, and whether there is such a block."""
    depth = _depth(document.lines[line])
    is_block = False
    for number, is_string in _visible(document, line):
        text = document.lines[number]
        if is_string or _depth(text) > depth:
            is_block = is_block or not is_string
        elif _depth(text) < depth or not _GOES_ON.match(text.strip()):
            return number, is_block
    return len(document.lines), is_block


def _visible(document: Document, line: int) -> Iterator[tuple[int, bool]]:
    """Yield the lines below a line that are not blank, and whether they begin in a string."""
    in_strings = lines_in_strings(document.lines, line)
    next(in_strings)
    for number, is_string in enumerate(in_strings, line + 1):
        if document.lines[number].strip():
            yield number, is_string


def _depth(line: str) -> int:
    return len(plain(indent_of(line)).expandtabs(_TAB))


def _words(line: str) -> str:
    return " ".join(plain(line).split())


_MAX_PLACES = 10_000


@dataclass(frozen=True, slots=True)
class Placed:
    """A change to a range of a text."""

    start: int
    end: int
    new: str
    grade: MatchLevel


def place_hunks(text: str, hunks: Sequence[Hunk], *, literal: bool) -> tuple[str, MatchLevel]:
    """Return a text with hunks applied, and the worst grade that was needed.

    Args:
        text: The text as it is.
        hunks: The changes; all of them are about this text, not about each other's result.
        literal: They tell line ends and numbers of lines, as programs do.

    Raises:
        PatchError: A hunk has no place, or several; the message says which hunk.
    """
    placement = Placement(text, literal=literal)
    for number, hunk in enumerate(hunks, 1):
        try:
            placement.place(hunk)
        except (PatchError, EditError) as error:
            which = f"Hunk {number} of {len(hunks)}" if len(hunks) > 1 else "Hunk"
            raise PatchError(f"{which}: {error}") from None
    grade = max((each.grade for each in placement.placed), key=lambda each: each.rank)
    return placement.content(), grade


class Placement:
    """The hunks of one file, placed one after the other in the text as it was."""

    def __init__(self, text: str, *, literal: bool) -> None:
        """Place hunks in `text`."""
        self._document = Document(text)
        self._literal = literal
        self._reached = 0  # the line after the last hunk
        self._drift = 0  # by how many lines hunks are elsewhere than they say
        self.placed: list[Placed] = []

    def place(self, hunk: Hunk) -> None:
        """Find the place of a hunk.

        Raises:
            PatchError: It has none, or several.
            EditError: Its new lines cannot be indented as they would have to be.
        """
        placed = self._found(hunk) if hunk.old else self._inserted(hunk)
        if self._document.text[placed.start : placed.end] == placed.new:
            raise PatchError(f"Nothing would change: {excerpt(hunk.new_text)}")
        self.placed.append(placed)

    def content(self) -> str:
        """Return the text with every hunk applied.

        Raises:
            PatchError: Two hunks change the same lines.
        """
        pieces: list[str] = []
        at = 0
        for each in sorted(self.placed, key=lambda each: (each.start, each.end)):
            if each.start < at:
                number = self._document.number_at(each.start)
                raise PatchError(
                    f"Two hunks change the same lines, about line {number}\nMake them one hunk"
                )
            pieces += (self._document.text[at : each.start], each.new)
            at = each.end
        return "".join([*pieces, self._document.text[at:]])

    def _found(self, hunk: Hunk) -> Placed:
        wanted = self._wanted(hunk)
        found = find(self._document, wanted, most=_MAX_PLACES)
        if found is None:
            raise PatchError(
                f"Lines were not found: {excerpt(hunk.old_text)}\n"
                f"{nearest_text(self._document, wanted)}"
            )
        match = self._chosen(hunk, found)
        first = self._document.line_at(match.start)
        if hunk.line is not None:
            self._drift = first - hunk.line
        self._reached = first + len(hunk.old)
        return self._trimmed(match, replacement(self._document, match, wanted), found.grade)

    def _wanted(self, hunk: Hunk) -> Wanted:
        if not hunk.old_ends and self._document.ends_with_newline:
            # the file has got the line end that the patch says is missing
            new = hunk.new_text.removesuffix("\n") + "\n"
            return Wanted(hunk.old_text + "\n", new, whole_lines=True)
        return Wanted(hunk.old_text, hunk.new_text, whole_lines=True, literal=self._literal)

    def _inserted(self, hunk: Hunk) -> Placed:
        """Return the place of lines that have none around them."""
        document = self._document
        at = len(document.text)
        if not document.lines:
            return Placed(at, at, hunk.new_text, MatchLevel.EXACT)
        if not hunk.at_end:
            anchors = scopes_below(document, hunk.anchors) if hunk.anchors else []
            if len(anchors) != 1:
                raise PatchError(
                    "No line stays or goes, so the place of the new ones is not known: "
                    f"{excerpt(hunk.new_text)}\nQuote some lines around the change"
                )
            at = document.after(anchors[0].start)
        ending = document.ending_at(at) or "\n"
        new = unify_line_ends(hunk.new_text).replace("\n", ending)
        if not document.is_line_start(at):
            new = ending + new.removesuffix(ending)
        return Placed(at, at, new, MatchLevel.EXACT)

    def _chosen(self, hunk: Hunk, found: Matches) -> Match:
        """Return the one match that is meant.

        Raises:
            PatchError: None is, or it cannot be told which.
        """
        matches = self._at_end(hunk, found.matches)
        if self._literal:
            steps = (self._as_numbered, self._by_heading, self._after_the_last)
        else:
            matches = self._below_anchors(hunk, matches)
            steps = (self._as_numbered, self._after_the_last)
        for narrowed in steps:
            if len(matches) > 1:
                matches = narrowed(hunk, matches) or matches
        if len(matches) == 1 and not found.more:
            return matches[0]
        raise PatchError(
            f"Lines were found {len(matches)} times, "
            f"at {self._named(matches)}: {excerpt(hunk.old_text)}\n"
            "Add lines around the change that only the right place has, "
            "or '@@' and the line that begins its function or class"
        )

    def _at_end(self, hunk: Hunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches at the end of the text, if the hunk says that it is there.

        Raises:
            PatchError: A line without an end would not be the last one.
        """
        if not hunk.at_end and hunk.old_ends and hunk.new_ends:
            return matches
        size = len(self._document.text)
        last = [match for match in matches if self._document.after(self._last(match)) == size]
        if last or (hunk.old_ends and hunk.new_ends):
            return last or matches
        raise PatchError(
            f"Lines are not at the end of the file, as the patch says: {excerpt(hunk.old_text)}\n"
            f"They were found at {self._named(matches)}"
        )

    def _below_anchors(self, hunk: Hunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches that are where the lines after `@@` say.

        A line may enclose the change, or merely be above it, as the headings of git are.

        Raises:
            PatchError: All of them are elsewhere.
        """
        scopes = scopes_below(self._document, hunk.anchors) if hunk.anchors else []
        if not scopes:
            return matches
        near = self._near(scopes, matches)
        if near:
            return near
        first = min(scope.start for scope in scopes)
        below = [match for match in matches if self._document.line_at(match.start) > first]
        if not below:
            raise PatchError(
                f"Lines were not found below {hunk.anchors[-1]!r}: {excerpt(hunk.old_text)}\n"
                f"They were found at {self._named(matches)}. Correct the line after '@@', "
                "or leave it out if that is the place"
            )
        # below a line that begins no block the nearest is meant
        return below if len(scopes) > 1 or scopes[0].is_block else below[:1]

    def _by_heading(self, hunk: Hunk, matches: Sequence[Match]) -> Sequence[Match]:
        """Return the matches in the block that git names, which need not be the right one."""
        scopes = scopes_below(self._document, hunk.anchors) if hunk.anchors else []
        return self._inside([scope for scope in scopes if scope.is_block], matches)

    def _inside(self, scopes: Sequence[Scope], matches: Sequence[Match]) -> list[Match]:
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

    def _near(self, scopes: Sequence[Scope], matches: Sequence[Match]) -> list[Match]:
        """Return the matches that a scope encloses, or for which git would name its line."""
        inside = {match.start for match in self._inside(scopes, matches)}
        sections = sections_of(self._document, scopes)
        starts = [(match, self._document.line_at(match.start)) for match in matches]
        return [
            match
            for match, line in starts
            if match.start in inside or any(line in section for section in sections)
        ]

    def _as_numbered(self, hunk: Hunk, matches: Sequence[Match]) -> Sequence[Match]:
        if hunk.line is None:
            return ()
        lines = {self._document.line_at(match.start): match for match in matches}
        expected = (hunk.line + self._drift, hunk.line)
        return [lines[line] for line in expected if line in lines][:1]

    def _after_the_last(self, _: Hunk, matches: Sequence[Match]) -> Sequence[Match]:
        return [match for match in matches if self._document.line_at(match.start) >= self._reached]

    def _last(self, match: Match) -> int:
        return self._document.line_at(max(match.end - 1, match.start))

    def _named(self, matches: Sequence[Match]) -> str:
        return format_line_numbers([self._document.line_at(match.start) + 1 for match in matches])

    def _trimmed(self, match: Match, new: str, grade: MatchLevel) -> Placed:
        """Return the change without the lines around it, which other hunks may show too."""
        old = ended_lines(self._document.text[match.start : match.end])
        lines = ended_lines(new)
        shorter = min(len(old), len(lines))
        start = 0
        while start < shorter and old[start] == lines[start]:
            start += 1
        end = 0
        while end < shorter - start and old[-1 - end] == lines[-1 - end]:
            end += 1
        return Placed(
            match.start + sum(map(len, old[:start])),
            match.end - sum(map(len, old[len(old) - end :])),
            "".join(lines[start : len(lines) - end]),
            grade,
        )
