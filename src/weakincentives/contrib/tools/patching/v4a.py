"""Parse V4A patches, the format of OpenAI's models: `*** Begin Patch` ... `*** End Patch`."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import dedent

from weakincentives.contrib.tools.editing.match import excerpt
from weakincentives.contrib.tools.patching.hunks import (
    FilePatch,
    HunkBuilder,
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
    """Return the patch of each file.

    Leading spaces before a marker are ignored where only a marker can be. In an update, a
    marker after a space could also be an unchanged line.

    Args:
        text: The patch.
        padded: Treat such a line as a marker.

    Raises:
        PatchError: The text is not a V4A patch, or is incomplete.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    start, stop = _find_bounds(text, lines)
    _dedent(lines, start, stop)
    if padded:
        lines = [_strip_padding(line) for line in lines]
    found = tuple(_parse_sections(lines, start, stop))
    if not found:
        raise PatchError(f"Patch names no file; start with one of {', '.join(_SECTIONS)}")
    return found


def has_padded_markers(text: str) -> bool:
    """Return whether a patch has markers with leading whitespace."""
    return any(
        line[:1].isspace() and line.lstrip().startswith(_IN_UPDATES) for line in text.split("\n")
    )


def _find_bounds(text: str, lines: Sequence[str]) -> tuple[int, int]:
    """Return the line after `*** Begin Patch`, and the line of `*** End Patch`."""
    markers = [line.rstrip() for line in lines]
    bare = [line.strip() for line in lines]
    if BEGIN not in bare:
        raise PatchError(f"Patch does not start with {BEGIN!r}: {excerpt(text)}")
    if _END not in bare:
        raise PatchError(
            f"Patch does not end with {_END!r}, so part of it may be missing: "
            f"{excerpt(lines[-1] or lines[max(len(lines) - 2, 0)])}\nSend the whole patch"
        )
    ends = markers if _END in markers else bare
    return bare.index(BEGIN) + 1, len(ends) - 1 - ends[::-1].index(_END)


def _dedent(lines: list[str], start: int, stop: int) -> None:
    """Remove indentation common to all lines of a patch; otherwise no line would have a sign."""
    first = next((line for line in lines[start:stop] if line.strip()), "")
    if first[:1].isspace() and first.lstrip().startswith(_SECTIONS):
        lines[start:stop] = dedent("\n".join(lines[start:stop])).split("\n")


def _strip_padding(line: str) -> str:
    return line.lstrip() if line.lstrip().startswith(_IN_UPDATES) else line


def _parse_sections(lines: Sequence[str], start: int, stop: int) -> list[FilePatch]:
    heads: list[int] = []
    for at in range(start, stop):
        # only in an update does a leading space mean something: an unchanged line
        in_update = bool(heads) and lines[heads[-1]].lstrip().startswith(_UPDATE)
        line = lines[at] if in_update else lines[at].lstrip()
        if line.startswith(_SECTIONS):
            heads.append(at)
        elif not heads and line:
            raise _unexpected_line_error(lines[at], at)
    return [_parse_section(lines, at, end) for at, end in pairwise([*heads, stop])]


def _parse_section(lines: Sequence[str], start: int, stop: int) -> FilePatch:
    head = lines[start].strip()
    kind = next(each for each in _SECTIONS if head.startswith(each))
    path = head.removeprefix(kind).strip()
    if not path:
        raise PatchError(f"Line {start + 1} of the patch has no file path: {head!r}")
    if kind == _ADD:
        return FilePatch("add", path, content=_parse_added(lines, start + 1, stop))
    if kind == _DELETE:
        for number in range(start + 1, stop):
            if lines[number].strip():
                raise _unexpected_line_error(lines[number], number)
        return FilePatch("delete", path)
    return _parse_update(path, lines, start + 1, stop)


def _parse_added(lines: Sequence[str], start: int, stop: int) -> str:
    while stop > start and not lines[stop - 1]:
        stop -= 1
    added: list[str] = []
    for number in range(start, stop):
        line = lines[number]
        if line and not line.startswith("+"):
            raise PatchError(
                f"Line {number + 1} of the patch, in a new file, does not start with '+': "
                f"{excerpt(line)}\nStart every line of a new file with '+'"
            )
        added.append(line[1:])
    return "".join(line + "\n" for line in added)


def _parse_update(path: str, lines: Sequence[str], start: int, stop: int) -> FilePatch:
    new_path = None
    if start < stop and lines[start].startswith(_MOVE):
        new_path = lines[start].strip().removeprefix(_MOVE).strip()
        start += 1
    hunks: list[HunkBuilder] = []
    for number in range(start, stop):
        _parse_line(hunks, lines[number], number)
    built = tuple(hunk.build() for hunk in hunks if hunk.body)
    found = tuple(hunk for hunk in built if hunk.old or hunk.new)
    for hunk in found:
        check_placeholders(hunk.old, hunk.new)
    if not found and new_path is None:
        raise PatchError(
            f"Update of {path!r} changes nothing\nAdd lines that start with '-' or '+' below '@@'"
        )
    return FilePatch("move" if new_path else "update", path, found, new_path)


def _parse_line(hunks: list[HunkBuilder], line: str, number: int) -> None:
    """Add a line of an update to the last hunk, or start another one."""
    if line.startswith("@@"):
        # several anchors in a row go from the outermost to the innermost block
        if not hunks or hunks[-1].body:
            hunks.append(HunkBuilder())
        hunks[-1].read_header(line)
    elif line.rstrip() == _END_OF_FILE and hunks:
        hunks[-1].at_end = True
    elif line.startswith("***"):
        raise _unexpected_line_error(line, number)
    elif line or hunks:
        if not hunks or hunks[-1].at_end:
            hunks.append(HunkBuilder())
        hunks[-1].read(line, number + 1)


def _unexpected_line_error(line: str, number: int) -> PatchError:
    known = (*_SECTIONS, _MOVE, _END_OF_FILE, _END)
    return PatchError(
        f"Line {number + 1} of the patch is not allowed there: {excerpt(line)}\n"
        f"Allowed are {', '.join(known)} and, in updates, '@@' and lines that start with"
        " ' ', '+' or '-'"
    )
