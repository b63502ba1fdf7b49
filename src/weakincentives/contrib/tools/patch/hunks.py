"""The lines of a hunk, in either format: ` ` stays, `-` goes, `+` comes."""

import re
from dataclasses import dataclass, field

from weakincentives.contrib.tools.edit.wording import excerpt
from weakincentives.contrib.tools.patch.changes import Hunk, PatchError

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
