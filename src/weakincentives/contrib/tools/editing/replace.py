"""What is put in the place of a text that was found.

Lines of the new text that the old one has too are taken from the document as they are
there, so that whatever was overlooked to find the place is not changed. The others
get the line ends of the lines that they replace, and the indentation that belongs there.
"""

from weakincentives.contrib.tools.editing.confusables import indent_of, plain
from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.editing.indent import Reindent
from weakincentives.contrib.tools.editing.match import Match, Wanted
from weakincentives.contrib.tools.editing.model import (
    Document,
    EditError,
    encoded_lines,
    unify_line_ends,
)
from weakincentives.filesystem.diff import changed_blocks


def replacement(document: Document, match: Match, wanted: Wanted) -> str:
    """Return what to put in the place of a match.

    Raises:
        EditError: A line of the new text cannot be indented as it would have to be.
    """
    found = document.text[match.start : match.end]
    old, new = wanted.text, unify_line_ends(wanted.new)
    if found == wanted.old and (wanted.literal or old == new):
        return wanted.new  # where nothing else changes, the edit is about line ends
    if old.endswith("\n") and not found.endswith("\n"):
        old, new = old[:-1], new.removesuffix("\n")
    if found == old and "\n" not in old and "\n" not in new:
        return new
    ending = document.ending_at(match.start)
    if found == old and not document.has_returns:
        return new if ending else wanted.new
    return _rebased(found, old.split("\n"), new.split("\n"), ending or "\n", match.reindent)


def _rebased(
    found: str, old: list[str], new: list[str], ending: str, reindent: Reindent | None
) -> str:
    *ended, last = found.split("\n")
    # the last piece has no end of its own: what follows it is outside
    pieces = [*map(_divided, ended), (last, ending)]
    lines: list[str] = []
    for number, (line, (source, is_kept)) in enumerate(zip(new, _sources(old, new), strict=True)):
        if is_kept:
            lines.append(pieces[source][0])
        else:
            lines.append(_indented(line, reindent, is_first=number == 0))
        lines.append(pieces[source][1])
    return "".join(lines[:-1])


def _divided(piece: str) -> tuple[str, str]:
    """Return a line and how it ends."""
    return (piece[:-1], "\r\n") if piece.endswith("\r") else (piece, "\n")


def _sources(old: list[str], new: list[str]) -> list[tuple[int, bool]]:
    """Return for every new line the old one that it stands for, and whether it is the same."""
    sources: list[tuple[int, bool]] = []
    at = 0
    for block in changed_blocks(encoded_lines(old), encoded_lines(new)):
        sources += [(number, True) for number in range(at, block.start)]
        last = max(block.stop - 1, block.start - 1, 0)
        count = block.new_stop - block.new_start
        sources += [(min(block.start + number, last), False) for number in range(count)]
        at = block.stop
    return sources + [(number, True) for number in range(at, len(old))]


def _indented(line: str, reindent: Reindent | None, *, is_first: bool) -> str:
    if reindent is None or not plain(line).strip():
        return line
    indent = indent_of(line)
    counterpart = reindent.of(indent, is_first=is_first)
    if counterpart is None:
        raise EditError(
            f"Text to replace was found with another indentation, and this line of the new "
            f"text has no place in it: {excerpt(line)}\n"
            "Quote the text with the indentation that the file has, and indent the new text alike"
        )
    return counterpart + line[len(indent) :]
