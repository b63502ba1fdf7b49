"""Where the hunks of a patch belong in a text.

A hunk is put where its lines are. If they are in several places, what its header says
has to leave one: it is never put where it merely might belong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.edit import EditError, Grade
from weakincentives.contrib.tools.edit.document import Document, ended_lines, unified
from weakincentives.contrib.tools.edit.matching import Found, Match, Wanted, find
from weakincentives.contrib.tools.edit.refusing import nearest_text
from weakincentives.contrib.tools.edit.replacing import replacement
from weakincentives.contrib.tools.edit.wording import excerpt, lines_named
from weakincentives.contrib.tools.patch.anchors import Scope, scopes_below, sections_of
from weakincentives.contrib.tools.patch.changes import Hunk, PatchError

_MAX_PLACES = 10_000


@dataclass(frozen=True, slots=True)
class Placed:
    """A change to a range of a text."""

    start: int
    end: int
    new: str
    grade: Grade


def placed_hunks(text: str, hunks: Sequence[Hunk], *, literal: bool) -> tuple[str, Grade]:
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
            return Placed(at, at, hunk.new_text, Grade.EXACT)
        if not hunk.at_end:
            anchors = scopes_below(document, hunk.anchors) if hunk.anchors else []
            if len(anchors) != 1:
                raise PatchError(
                    "No line stays or goes, so the place of the new ones is not known: "
                    f"{excerpt(hunk.new_text)}\nQuote some lines around the change"
                )
            at = document.after(anchors[0].start)
        ending = document.ending_at(at) or "\n"
        new = unified(hunk.new_text).replace("\n", ending)
        if not document.is_line_start(at):
            new = ending + new.removesuffix(ending)
        return Placed(at, at, new, Grade.EXACT)

    def _chosen(self, hunk: Hunk, found: Found) -> Match:
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
        return lines_named([self._document.line_at(match.start) + 1 for match in matches])

    def _trimmed(self, match: Match, new: str, grade: Grade) -> Placed:
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
