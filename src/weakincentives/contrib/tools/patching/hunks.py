"""What a patch says, and what is to be done about it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.editing.sanitize import find_placeholder
from weakincentives.errors import WinkError

Reader = Callable[[str], str | None]
"""Returns the text of a file by its path; None if there is no such file."""
ChangeKind = Literal["add", "update", "move", "delete"]


class PatchError(WinkError, ValueError):
    """A patch cannot be applied; the message tells which part, why, and what to do next.

    Args:
        message: What a model is told.
        missing: The file that the patch is about, if the reason is that it does not exist.
    """

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        """Say what is wrong."""
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What is to be done to one file.

    Args:
        kind: `add` and `update` write `content` to `path`, `move` writes it to `new_path`
            and removes `path`, `delete` removes `path`.
        path: The file.
        content: What it is to hold; None if it is to be deleted.
        new_path: Where it is to be moved.
        grade: What had to be overlooked to find the places of the changes.
    """

    kind: ChangeKind
    path: str
    content: str | None = None
    new_path: str | None = None
    grade: MatchLevel = MatchLevel.EXACT


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of a file and the lines that are to be there instead.

    Args:
        old: The lines to find, those around the change included.
        new: The lines to put there.
        anchors: Lines above, outermost first, below which the change is.
        line: Where the old lines are said to begin, counted from 0.
        at_end: They are said to be the last ones of the file.
        old_ends: The last old line has an end.
        new_ends: The last new line has an end.
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
        return _joined(self.old, self.old_ends)

    @property
    def new_text(self) -> str:
        """The new lines as one text."""
        return _joined(self.new, self.new_ends)


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What a patch says about one file.

    Args:
        kind: What is to be done.
        path: The file.
        hunks: The changes to its text.
        new_path: Where it is to be moved.
        content: The text of a file to add.
        literal: Line ends are told exactly, as programs do; otherwise those of the file are meant.
        other_path: What the file is called if there is none at `path`.
    """

    kind: ChangeKind
    path: str
    hunks: tuple[Hunk, ...] = ()
    new_path: str | None = None
    content: str | None = None
    literal: bool = False
    other_path: str | None = None


def check_placeholders(old: Sequence[str], new: Sequence[str]) -> None:
    """Refuse lines of which one stands for text that would be removed.

    Raises:
        PatchError: One does.
    """
    line = find_placeholder(old, new)
    if line is not None:
        raise PatchError(
            f"Patch has a placeholder instead of text: {excerpt(line.strip())}\n"
            "Lines that stay as they are need not be mentioned; leave it out"
        )


def _joined(lines: tuple[str, ...], ends: bool) -> str:
    return "\n".join(lines) + ("\n" if lines and ends else "")


_RANGES = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@+ ?(.*)")
_SIGNATURE = "-- "  # git ends a mail with it


@dataclass(slots=True)
class HunkLines:
    """A hunk that is being read."""

    anchors: list[str] = field(default_factory=list[str])
    line: int | None = None
    counts: tuple[int, int] | None = None
    at_end: bool = False
    body: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    no_end: set[str] = field(default_factory=set[str])

    def read_header(self, line: str) -> None:
        """Take what follows `@@`: the numbers of lines, or a line above the change."""
        ranges = _RANGES.match(line)
        if ranges is None:
            heading = line.lstrip("@").removesuffix("@@")
        else:
            start, old, new, heading = ranges.groups()
            self.counts = int(old or 1), int(new or 1)
            # an empty range is after the line that it names
            self.line = int(start) if old == "0" else max(int(start) - 1, 0)
        if heading.strip():
            self.anchors.append(heading.strip())

    def is_over(self, line: str) -> bool:
        """Return whether all lines that the header counts were read and this is no more of them.

        Models count badly, so a line that goes on is believed more than a number.
        """
        if self.counts is None:
            return False
        old = sum(sign != "+" for sign, _ in self.body)
        new = sum(sign != "-" for sign, _ in self.body)
        is_complete = old >= self.counts[0] and new >= self.counts[1]
        return is_complete and (line == _SIGNATURE or line[:1] not in {" ", "+", "-", "\\"})

    def read(self, line: str, number: int) -> None:
        """Take a line of the body.

        Raises:
            PatchError: It does not say whether it stays, goes or comes.
        """
        if line.startswith("\\"):
            if self.body:
                self.no_end.add(self.body[-1][0])
        elif not line.rstrip("\r"):
            self.body.append(("", line))
        elif line[0] in " +-":
            self.body.append((line[0], line[1:]))
        else:
            raise PatchError(
                f"Line {number} of the patch begins with none of ' ', '+', '-': {excerpt(line)}\n"
                "Put a blank before every line that stays as it is"
            )

    def hunk(self) -> Hunk:
        """Return what was read; empty lines at the end are not a part of it."""
        while self.body and not self.body[-1][0]:
            self.body.pop()
        return Hunk(
            tuple(text for sign, text in self.body if sign != "+"),
            tuple(text for sign, text in self.body if sign != "-"),
            tuple(self.anchors),
            self.line,
            self.at_end,
            old_ends=not self.no_end & {"-", " ", ""},
            new_ends=not self.no_end & {"+", " ", ""},
        )
