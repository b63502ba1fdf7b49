"""Hunks, file patches and planned changes: the model that both patch formats parse into."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.editing.match import excerpt
from weakincentives.contrib.tools.editing.sanitize import find_placeholder
from weakincentives.errors import WinkError

Reader = Callable[[str], str | None]
"""Returns the text of the file at a path; None if there is no such file."""
ChangeKind = Literal["add", "update", "move", "delete"]


class PatchError(WinkError, ValueError):
    """A patch cannot be applied; the message says which part, why, and what to do next.

    Args:
        message: The text for the model.
        missing: The path of the file that does not exist, if that is the reason.
    """

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        """Keep the message and the missing path."""
        super().__init__(message)
        self.missing: str | None = missing


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change to make to one file.

    Args:
        kind: `add` and `update` write `content` to `path`, `move` writes it to `new_path`
            and removes `path`, `delete` removes `path`.
        path: The file.
        content: Its new text; None to delete it.
        new_path: The path to move it to.
        match_level: The most tolerant match level that was needed.
    """

    kind: ChangeKind
    path: str
    content: str | None = None
    new_path: str | None = None
    match_level: MatchLevel = MatchLevel.EXACT


@dataclass(frozen=True, slots=True)
class PatchHunk:
    """Lines of a file, and the lines that replace them.

    Args:
        old: The lines to find, context lines included.
        new: The lines that replace them.
        anchors: Lines above the change, outermost first.
        line: The stated position of the old lines, counted from 0.
        at_end: The hunk is stated to be at the end of the file.
        old_ends: The last old line has a line ending.
        new_ends: The last new line has a line ending.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    anchors: tuple[str, ...] = ()
    line: int | None = None
    at_end: bool = False
    old_ends: bool = True
    new_ends: bool = True

    @property
    def old_text(self) -> str:
        """The old lines as one text."""
        return _join_lines(self.old, ends=self.old_ends)

    @property
    def new_text(self) -> str:
        """The new lines as one text."""
        return _join_lines(self.new, ends=self.new_ends)


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The part of a patch that is about one file.

    Args:
        kind: What to do with the file.
        path: The file.
        hunks: The changes to its text.
        new_path: The path to move it to.
        content: The text of a file to add.
        literal: Line endings are exact, as in diffs written by programs; otherwise the
            file's own are used.
        other_path: The path to use if there is no file at `path`.
    """

    kind: ChangeKind
    path: str
    hunks: tuple[PatchHunk, ...] = ()
    new_path: str | None = None
    content: str | None = None
    literal: bool = False
    other_path: str | None = None


def check_placeholders(old: Sequence[str], new: Sequence[str]) -> None:
    """Reject new lines with a placeholder for text that would be removed."""
    line = find_placeholder(old, new)
    if line is not None:
        raise PatchError(
            f"Patch has a placeholder for omitted text: {excerpt(line.strip())}\n"
            "Leave it out; a patch does not need lines that stay unchanged"
        )


def _join_lines(lines: tuple[str, ...], *, ends: bool) -> str:
    return "\n".join(lines) + ("\n" if lines and ends else "")


_RANGES = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@+ ?(.*)")
_SIGNATURE = "-- "  # the last line of a patch mailed by git


@dataclass(slots=True)
class HunkBuilder:
    """Builds a hunk from the lines of a patch."""

    anchors: list[str] = field(default_factory=list[str])
    line: int | None = None
    counts: tuple[int, int] | None = None
    at_end: bool = False
    body: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    no_end: set[str] = field(default_factory=set[str])

    def read_header(self, line: str) -> None:
        """Parse a line that starts with `@@`: line ranges, or a line above the change."""
        ranges = _RANGES.match(line)
        if ranges is None:
            heading = line.lstrip("@").removesuffix("@@")
        else:
            start, old, new, heading = ranges.groups()
            self.counts = int(old or 1), int(new or 1)
            # an empty range comes after the line it names
            self.line = int(start) if old == "0" else max(int(start) - 1, 0)
        if heading.strip():
            self.anchors.append(heading.strip())

    def is_complete(self, line: str) -> bool:
        """Return whether all lines that the header counts were read, and `line` is not another.

        Models count badly, so a line that looks like part of the hunk overrides the count.
        """
        if self.counts is None:
            return False
        old = sum(sign != "+" for sign, _ in self.body)
        new = sum(sign != "-" for sign, _ in self.body)
        has_all = old >= self.counts[0] and new >= self.counts[1]
        return has_all and (line == _SIGNATURE or line[:1] not in {" ", "+", "-", "\\"})

    def read(self, line: str, number: int) -> None:
        """Parse a line of the body."""
        if line.startswith("\\"):
            if self.body:
                self.no_end.add(self.body[-1][0])
        elif not line.rstrip("\r"):
            self.body.append(("", line))
        elif line[0] in " +-":
            self.body.append((line[0], line[1:]))
        else:
            raise PatchError(
                f"Line {number} of the patch does not start with ' ', '+' or '-': {excerpt(line)}\n"
                "Start every unchanged line with a space"
            )

    def build(self) -> PatchHunk:
        """Return the hunk, without empty lines at its end."""
        while self.body and not self.body[-1][0]:
            self.body.pop()
        return PatchHunk(
            tuple(text for sign, text in self.body if sign != "+"),
            tuple(text for sign, text in self.body if sign != "-"),
            tuple(self.anchors),
            self.line,
            self.at_end,
            old_ends=not self.no_end & {"-", " ", ""},
            new_ends=not self.no_end & {"+", " ", ""},
        )
