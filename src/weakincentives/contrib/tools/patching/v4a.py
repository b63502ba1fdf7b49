"""Patches as OpenAI's models write them: `*** Begin Patch` and what follows."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import dedent

from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.patching.hunks import (
    FilePatch,
    HunkLines,
    PatchError,
    check_placeholders,
)

BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ADD = "*** Add File:"
_UPDATE = "*** Update File:"
_DELETE = "*** Delete File:"
_MOVE = "*** Move to:"
_END_OF_FILE = "*** End of File"
_SECTIONS = (_ADD, _UPDATE, _DELETE)
_IN_UPDATES = (*_SECTIONS, _MOVE, _END_OF_FILE, "@@")


def parse_v4a(text: str, *, padded: bool = False) -> tuple[FilePatch, ...]:
    """Return what a patch says about each file.

    Blanks before a mark do not matter where only a mark can be. In an update, a mark with a
    blank before it is also a line that stays.

    Args:
        text: The patch.
        padded: Take such a line for a mark.

    Raises:
        PatchError: The text is not such a patch, or a part of it is missing.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    start, stop = _bounds(text, lines)
    _dedent(lines, start, stop)
    if padded:
        lines = [_without_padding(line) for line in lines]
    found = tuple(_sections(lines, start, stop))
    if not found:
        raise PatchError(f"Patch has no file; begin with one of {', '.join(_SECTIONS)}")
    return found


def has_padded_marks(text: str) -> bool:
    """Return whether a patch has lines that are marks but for the blanks before them."""
    return any(
        line[:1].isspace() and line.lstrip().startswith(_IN_UPDATES) for line in text.split("\n")
    )


def _bounds(text: str, lines: Sequence[str]) -> tuple[int, int]:
    """Return the line after the beginning of a patch, and that of its end."""
    marks = [line.rstrip() for line in lines]
    bare = [line.strip() for line in lines]
    if BEGIN not in bare:
        raise PatchError(f"Patch does not begin with {BEGIN!r}: {excerpt(text)}")
    if _END not in bare:
        raise PatchError(
            f"Patch does not end with {_END!r}, so a part of it may be missing: "
            f"{excerpt(lines[-1] or lines[max(len(lines) - 2, 0)])}\nSend the whole patch"
        )
    ends = marks if _END in marks else bare
    return bare.index(BEGIN) + 1, len(ends) - 1 - ends[::-1].index(_END)


def _dedent(lines: list[str], start: int, stop: int) -> None:
    """Remove the blanks that all lines of a patch begin with: otherwise none would change."""
    first = next((line for line in lines[start:stop] if line.strip()), "")
    if first[:1].isspace() and first.lstrip().startswith(_SECTIONS):
        lines[start:stop] = dedent("\n".join(lines[start:stop])).split("\n")


def _without_padding(line: str) -> str:
    return line.lstrip() if line.lstrip().startswith(_IN_UPDATES) else line


def _sections(lines: Sequence[str], start: int, stop: int) -> list[FilePatch]:
    heads: list[int] = []
    for at in range(start, stop):
        # only in an update has a line with a blank before it a meaning of its own
        in_update = bool(heads) and lines[heads[-1]].lstrip().startswith(_UPDATE)
        line = lines[at] if in_update else lines[at].lstrip()
        if line.startswith(_SECTIONS):
            heads.append(at)
        elif not heads and line:
            raise _unknown(lines[at], at)
    return [_section(lines, at, end) for at, end in pairwise([*heads, stop])]


def _section(lines: Sequence[str], start: int, stop: int) -> FilePatch:
    head = lines[start].strip()
    kind = next(each for each in _SECTIONS if head.startswith(each))
    path = head.removeprefix(kind).strip()
    if not path:
        raise PatchError(f"Line {start + 1} of the patch names no file: {head!r}")
    if kind == _ADD:
        return FilePatch("add", path, content=_added(lines, start + 1, stop))
    if kind == _DELETE:
        for number in range(start + 1, stop):
            if lines[number].strip():
                raise _unknown(lines[number], number)
        return FilePatch("delete", path)
    return _update(path, lines, start + 1, stop)


def _added(lines: Sequence[str], start: int, stop: int) -> str:
    while stop > start and not lines[stop - 1]:
        stop -= 1
    added: list[str] = []
    for number in range(start, stop):
        line = lines[number]
        if line and not line.startswith("+"):
            raise PatchError(
                f"Line {number + 1} of the patch is in a new file and does not begin with '+': "
                f"{excerpt(line)}\nPut a '+' before every line of a new file"
            )
        added.append(line[1:])
    return "".join(line + "\n" for line in added)


def _update(path: str, lines: Sequence[str], start: int, stop: int) -> FilePatch:
    new_path = None
    if start < stop and lines[start].startswith(_MOVE):
        new_path = lines[start].strip().removeprefix(_MOVE).strip()
        start += 1
    hunks: list[HunkLines] = []
    for number in range(start, stop):
        _read(hunks, lines[number], number)
    read = tuple(hunk.hunk() for hunk in hunks if hunk.body)
    found = tuple(hunk for hunk in read if hunk.old or hunk.new)
    for hunk in found:
        check_placeholders(hunk.old, hunk.new)
    if not found and new_path is None:
        raise PatchError(
            f"Update of {path!r} has no change\nWrite lines that begin with '-' and '+' below '@@'"
        )
    return FilePatch("move" if new_path else "update", path, found, new_path)


def _read(hunks: list[HunkLines], line: str, number: int) -> None:
    """Read a line of an update into the last hunk, or begin another one."""
    if line.startswith("@@"):
        # several of them in a row lead from the outside to the inside
        if not hunks or hunks[-1].body:
            hunks.append(HunkLines())
        hunks[-1].read_header(line)
    elif line.rstrip() == _END_OF_FILE and hunks:
        hunks[-1].at_end = True
    elif line.startswith("***"):
        raise _unknown(line, number)
    elif line or hunks:
        if not hunks or hunks[-1].at_end:
            hunks.append(HunkLines())
        hunks[-1].read(line, number + 1)


def _unknown(line: str, number: int) -> PatchError:
    known = (*_SECTIONS, _MOVE, _END_OF_FILE, _END)
    return PatchError(
        f"Line {number + 1} of the patch has no meaning there: {excerpt(line)}\n"
        f"Known are {', '.join(known)} and, in updates, '@@' and lines with ' ', '+' or '-' before"
    )
