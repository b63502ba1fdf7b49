"""Unified patches in git's format: headers, hunks, quoted paths and binary files.

A binary file is deflated and encoded in base 85, 52 bytes per line, in both directions.
"""

import re
import zlib
from base64 import b85encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters

from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.diff.changes import (
    Change,
    Section,
    Side,
    chunks,
    encode_path,
    sections_of,
)
from weakincentives.filesystem.diff.myers import Block, changed_blocks, split_lines
from weakincentives.filesystem.diff.omissions import GitApplySimulator, Omission
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import parents_of

_LINE = 52  # bytes in a line, counted by its first letter: A to Z, then a to z
_LENGTHS = (ascii_letters[26:] + ascii_letters[:26]).encode()


def binary_patch(before: Content, after: Content) -> Iterator[bytes]:
    """Yield a binary patch from `before` to `after`, and its reverse."""
    yield b"GIT binary patch\n"
    yield from _literal(after)
    yield from _literal(before)


def _literal(content: Content) -> Iterator[bytes]:
    yield b"literal %d\n" % content.size
    pending = b""
    for piece in _deflate(content):
        pending += piece
        complete = len(pending) - len(pending) % _LINE
        yield b"".join(_base85_line(pending[at : at + _LINE]) for at in range(0, complete, _LINE))
        pending = pending[complete:]
    yield (_base85_line(pending) if pending else b"") + b"\n"


def _deflate(content: Content) -> Iterator[bytes]:
    deflater = zlib.compressobj()
    for chunk in chunks(content):
        yield deflater.compress(chunk)
    yield deflater.flush()


def _base85_line(data: bytes) -> bytes:
    return b"%c%b\n" % (_LENGTHS[len(data) - 1], b85encode(data, pad=True))


_NO_ID = "0" * 40
_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}


@dataclass(frozen=True, slots=True)
class Style:
    """The style of a patch: lines of context, and whether it must be UTF-8 text."""

    context: int = 3
    utf8: bool = False


class Patch:
    """The patch of some changes, with one part for each."""

    def __init__(
        self, changes: Sequence[Change], before: Side, after: Side, ground: State | None = None
    ) -> None:
        """Describe `changes`, for a tree that is as `before`, or as `ground` if that has more."""
        self._changes = changes
        self._before = before
        self._after = after
        self._plan = GitApplySimulator(changes, ground or before)
        self.omissions: tuple[Omission, ...] = self._plan.omissions()
        self._remarks = _group_by_change(self.omissions, changes)

    def part(self, number: int, style: Style) -> Iterator[bytes]:
        """Yield the remarks and sections of one change."""
        change = self._changes[number]
        for each in self._remarks.get(number, ()):
            yield f"# wink: {each.fact}: {_name(each.path)}\n".encode()
        if self._plan.includes(change):
            for section in sections_of(change):
                yield _header(change, section)
                yield from self._content(section, style)

    def _content(self, section: Section, style: Style) -> Iterator[bytes]:
        if section.same_content:
            return
        old_id = self._before.blob_id(section.before) if section.before else _NO_ID
        new_id = self._after.blob_id(section.after) if section.after else _NO_ID
        mode = section.modes[0] if section.modes[0] == section.modes[1] else None
        end = f" {mode:o}" if mode else ""
        yield f"index {old_id}..{new_id}{end}\n".encode()
        texts = section.texts(self._before, self._after)
        if texts is None or (style.utf8 and not all(map(_is_utf8, texts))):
            yield from self._binary(section)
        else:
            old, new = map(split_lines, texts)
            if old or new:
                yield b"--- %b\n+++ %b\n" % _labels(section)
            yield from hunks(old, new, changed_blocks(old, new), style.context)

    def _binary(self, section: Section) -> Iterator[bytes]:
        nothing = BytesContent(b"")
        with (
            self._before.open_entry(section.before) if section.before else nothing as old,
            self._after.open_entry(section.after) if section.after else nothing as new,
        ):
            yield from binary_patch(old, new)


def hunks(
    old: Sequence[bytes], new: Sequence[bytes], blocks: Sequence[Block], context: int
) -> Iterator[bytes]:
    """Yield the hunks of differing blocks, with `context` lines around them."""
    for group in group_blocks(blocks, 2 * context):
        start = max(group[0].start - context, 0)
        new_start = group[0].new_start - (group[0].start - start)
        stop = min(group[-1].stop + context, len(old))
        new_stop = group[-1].new_stop + (stop - group[-1].stop)
        lines = [b"@@ -%b +%b @@\n" % (_range(start, stop), _range(new_start, new_stop))]
        at = start
        for block in group:
            lines += [_line(b" ", line) for line in old[at : block.start]]
            lines += [_line(b"-", line) for line in old[block.start : block.stop]]
            lines += [_line(b"+", line) for line in new[block.new_start : block.new_stop]]
            at = block.stop
        lines += [_line(b" ", line) for line in old[at:stop]]
        yield b"".join(lines)


def quote_path(name: bytes) -> bytes:
    """Quote a path as git does: if it contains anything but printable ASCII."""
    if not _QUOTED.search(name):
        return name
    return b'"%b"' % _QUOTED.sub(_escape, name)


def _header(change: Change, section: Section) -> bytes:
    source = section.before.path if section.before else change.path
    names = _header_name(b"a/", source), _header_name(b"b/", change.path)
    lines = [b"diff --git %b %b" % names]
    old, new = section.modes
    if old is None:
        lines.append(b"new file mode %o" % (new or 0))
    elif new is None:
        lines.append(b"deleted file mode %o" % old)
    elif old != new:
        lines += [b"old mode %o" % old, b"new mode %o" % new]
    if change.source is not None:
        lines.append(b"similarity index %d%%" % (change.similarity or 0))
        lines.append(b"rename from " + quote_path(encode_path(change.source)))
        lines.append(b"rename to " + quote_path(encode_path(change.path)))
    return b"\n".join(lines) + b"\n"


def _header_name(prefix: bytes, path: str) -> bytes:
    name = quote_path(prefix + encode_path(path))
    # after a directory that ends in a space, git cannot tell where the first name ends
    return b'"%b"' % name if " /" in path and not name.startswith(b'"') else name


def _labels(section: Section) -> tuple[bytes, bytes]:
    return _label(b"a/", section.before), _label(b"b/", section.after)


def _label(prefix: bytes, side: FileStat | None) -> bytes:
    if side is None:
        return b"/dev/null"
    # git ends a name with spaces by a tab, since the last word could be read as a date
    return quote_path(prefix + encode_path(side.path)) + (b"\t" if " " in side.path else b"")


def group_blocks(blocks: Sequence[Block], distance: int) -> Iterator[list[Block]]:
    """Yield the blocks in groups with at most `distance` equal lines between two of them."""
    group: list[Block] = []
    for block in blocks:
        if group and block.start - group[-1].stop > distance:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (length > 0), length)


def _line(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


def _group_by_change(
    omissions: Iterable[Omission], changes: Sequence[Change]
) -> dict[int, list[Omission]]:
    """Return the omissions by the index of the change whose part mentions them.

    That is the change of the path itself, or the first one below it.
    """
    numbers: dict[str, int] = {}
    for number, change in enumerate(changes):
        for side in change.sides:
            for place in (*parents_of(side.path), side.path):
                numbers.setdefault(place, number)
    numbers |= {change.path: number for number, change in enumerate(changes)}
    found: dict[int, list[Omission]] = {}
    for each in omissions:
        found.setdefault(numbers[each.path], []).append(each)
    return found


def _name(path: str) -> str:
    return quote_path(encode_path(path)).decode()


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()[0]
    return b"\\" + (_ESCAPES.get(byte) or b"%03o" % byte)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
