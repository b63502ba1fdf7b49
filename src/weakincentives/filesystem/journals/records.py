"""The records of a journal: how to undo each change, written down before it is made.

A record is whole or it is not there: a checksum tells. What follows a damaged one is
not there either, for its change had not begun.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from weakincentives.filesystem.leftovers import is_hidden
from weakincentives.filesystem.paths import PathEscapeError, normalize_path

Kind: TypeAlias = Literal["kept", "absent", "moved", "mode", "made", "state"]

_NAME = b"wink-journal "
_TITLE = _NAME + b"1\n"
_HEAD = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{6}) ")
_HEAD_SIZE = 16
_COMMIT = re.compile(rb"[0-9a-f]{40}")
_KINDS: dict[bytes, Kind] = {kind.encode(): kind for kind in get_args(Kind)}


@dataclass(frozen=True, slots=True)
class Record:
    """How it was before a change.

    kept: what was at `path` is in the journal, under `number`.
    absent: nothing was at `path`.
    moved: the directory that was at `path` is at `other`.
    mode: what is at `path` had the permissions `number`.
    made: a directory was at `path`.
    state: everything was as the commit `other` of a snapshot says.
    """

    kind: Kind
    path: str = ""
    number: int = 0
    other: str = ""

    def encode(self) -> bytes:
        """Return the record as it is on disk."""
        paths = os.fsencode(self.path), os.fsencode(self.other)
        content = b"\0".join((self.kind.encode(), b"%d" % self.number, *paths))
        return b"%08x %06x %b\n" % (zlib.crc32(content), len(content), content)


class RecordFile:
    """The records of one journal, in memory and in an open file."""

    def __init__(self, descriptor: int, *, durable: bool) -> None:
        """Know nothing of what is in the file."""
        self.records: list[Record] = []
        self._ends = [len(_TITLE)]
        self._descriptor = descriptor
        self._durable = durable

    def start(self) -> None:
        """Begin a file that is empty."""
        self._write(_TITLE, 0)

    def read(self) -> bool:
        """Read what is there; return False if it is of a version that we do not know."""
        title = os.pread(self._descriptor, len(_TITLE), 0)
        if title != _TITLE:
            return not title.startswith(_NAME)
        for record, end in _read(self._descriptor):
            self.records.append(record)
            self._ends.append(end)
        return True

    def add(self, *records: Record) -> None:
        """Write records in one step."""
        data = [record.encode() for record in records]
        self._write(b"".join(data), self._ends[-1])
        for record, encoded in zip(records, data, strict=True):
            self.records.append(record)
            self._ends.append(self._ends[-1] + len(encoded))

    def cut(self) -> None:
        """Remove the last record: it has been undone."""
        os.ftruncate(self._descriptor, self._ends[-2])
        if self._durable:
            os.fsync(self._descriptor)
        self.records.pop()
        self._ends.pop()

    def _write(self, data: bytes, end: int) -> None:
        """Write `data` where the records end; nothing of it stays if the disk is full."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], end + done)
            if self._durable:
                os.fsync(self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise


def _read(descriptor: int) -> Iterator[tuple[Record, int]]:
    """Yield the records of a file, each with the place where it ends."""
    offset = len(_TITLE)
    while head := _HEAD.fullmatch(os.pread(descriptor, _HEAD_SIZE, offset)):
        length = int(head[2], 16)
        content = os.pread(descriptor, length + 1, offset + _HEAD_SIZE)
        if content[length:] != b"\n" or zlib.crc32(content[:-1]) != int(head[1], 16):
            return
        record = _decoded(content[:-1])
        if record is None:
            return
        offset += _HEAD_SIZE + length + 1
        yield record, offset


def _decoded(content: bytes) -> Record | None:
    """Return the record, or None if it is none or leads to what is not in the workspace."""
    kind, number, path, other = content.split(b"\0") if content.count(b"\0") == 3 else [b""] * 4
    if kind not in _KINDS or not number.isdigit():
        return None
    record = Record(_KINDS[kind], os.fsdecode(path), int(number), os.fsdecode(other))
    if record.kind == "state":
        return record if _COMMIT.fullmatch(other) else None
    wanted = (record.path, record.other) if record.kind == "moved" else (record.path,)
    return record if all(map(_is_plain, wanted)) else None


def _is_plain(path: str) -> bool:
    try:
        return bool(path) and normalize_path(path) == path and not is_hidden(path)
    except PathEscapeError:
        return False
