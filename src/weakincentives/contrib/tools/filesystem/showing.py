"""What a change looks like: a unified diff, and as much of it as a model should read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.edit import Grade
from weakincentives.contrib.tools.filesystem.wording import named
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem.diffs.changes import encoded
from weakincentives.filesystem.diffs.lines import changed_blocks, split_lines
from weakincentives.filesystem.diffs.patch import hunks, quoted
from weakincentives.filesystem.diffs.sections import MAX_TEXT

MAX_DIFF = 12_000
"""Characters of a difference that a model is shown."""

_MAX_LINES = 200  # lines of a difference: most of what is new the model has just sent

_CONTEXT = 3
_NOTE = 300  # characters kept for the line about what is not shown
_OVERLOOKED = {
    Grade.LINE_ENDINGS: "line endings differ",
    Grade.TRAILING_SPACE: "blanks at the ends of lines differ",
    Grade.INDENTATION: "the indentation differs",
    Grade.UNICODE: "look-alike characters (quotes, dashes, blanks) differ",
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
    names = quoted(b"a/" + encoded(source or path)), quoted(b"b/" + encoded(path))
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
    first, second = b"a/" + encoded(source or path), b"b/" + encoded(path)
    if source is not None or not changed:
        yield b"diff --git %b %b\n" % (quoted(first), quoted(second))
    if source is not None:
        yield b"rename from %b\n" % quoted(encoded(source))
        yield b"rename to %b\n" % quoted(encoded(path))
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
    return quoted(name) + (b"\t" if b" " in name else b"")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def message(
    bench: Workbench, head: Sequence[str], diff: str, *, rest: str | None, limit: int = MAX_DIFF
) -> str:
    """Return what a model is told: lines, and a difference cut to what may be shown.

    Args:
        bench: Has the budget.
        head: The lines that come first.
        diff: The difference.
        rest: How to see what is not shown.
        limit: Characters of the difference at most.
    """
    text = _fitting("\n".join(line for line in head if line), bench.settings.budget)
    room = min(limit, bench.settings.budget - len(text) - _NOTE)
    if not diff:
        return text
    kept, left = _cut(diff, room, bench.settings.max_line_characters)
    if left:
        how = "" if rest is None else f"; {rest}"
        kept += f"[{left} more lines of the difference are not shown{how}]"
    return _fitting(f"{text}\n{kept}".rstrip("\n"), bench.settings.budget)


def rest_hint(bench: Workbench, path: str, *, applied: bool) -> str | None:
    """Return how to see what is not shown of a change."""
    if not applied:
        return "to see all of it, ask for less at once"
    how = bench.speech.call(ReadFileParams(path))
    return None if how is None else f"to see how {named(path)} is now: {how}"


def line_count(data: bytes) -> int:
    """Return how many lines there are."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def overlooked(grade: Grade) -> str:
    """Return a sentence about what had to be overlooked; empty if nothing had."""
    what = _OVERLOOKED.get(grade)
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
