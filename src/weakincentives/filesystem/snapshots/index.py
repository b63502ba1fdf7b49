"""The index: what the last capture saw, kept in the store for the next process.

With it, a walk reads only what has changed since, although it is the first one. It is no
more than a memory: one that is damaged, of another workspace, or older than the last
removal of objects is not used, and one that is not there costs nothing but time.
"""

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.regular import read_regular
from weakincentives.filesystem.snapshots.captured import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    CapturedLink,
)
from weakincentives.filesystem.store.hidden import HiddenFile

_MAGIC = b"wink-index 1\n"
_DIGEST = 20
_MAX_BYTES = 256 * 1024 * 1024
_log = logging.getLogger(__name__)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A directory; a child is a number if it is the directory in that row."""

    entry: bytes
    permissions: int
    specials: bytes
    names: bytes
    children: list[CapturedFile | CapturedLink | int]


class _Index(msgspec.Struct, array_like=True):
    root: bytes
    epoch: str
    rows: list[_Row]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Index)


def load_index(path: Path, *, root: str, epoch: str) -> CapturedDirectory | None:
    """Return what was captured last, or None if that is not known.

    Everything may have changed since: it is the prior of a walk, and says nothing about
    what is there now.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(data[start:]):
        return None
    try:
        index = _decoder.decode(memoryview(data)[start:])
        if index.root != os.fsencode(root) or index.epoch != epoch:
            return None
        return _built(index.rows)
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        _log.warning("Index cannot be read: %r: %s", str(path), error)
        return None


def save_index(path: Path, captured: CapturedDirectory, *, root: str, epoch: str) -> None:
    """Keep what was captured and is stored, in place of what was kept before.

    It is not brought to the disk; if it cannot be written, the old one stays.
    """
    data = _encoder.encode(_Index(os.fsencode(root), epoch, _rows(captured)))
    if len(data) > _MAX_BYTES:
        return
    try:
        with HiddenFile(path.parent, _MAGIC + _digest(data) + data) as file:
            reached("index.written")
            file.name(path)
    except OSError as error:
        _log.warning("Index cannot be kept: %r: %s", str(path), error)


def changed_files(before: CapturedDirectory | None, after: CapturedDirectory) -> int:
    """Return how many files and links there are that were not there, or were others, before."""
    count = 0
    pending = [(before, after)]
    while pending:
        old, new = pending.pop()
        known = {} if old is None else old.children
        for name, child in new.children.items():
            other = known.get(name)
            if child is other:
                continue
            if isinstance(child, CapturedDirectory):
                pending.append((other if isinstance(other, CapturedDirectory) else None, child))
            else:
                count += 1
    return count


def _rows(captured: CapturedDirectory) -> list[_Row]:
    directories = [captured]
    rows: list[_Row] = []
    for directory in directories:  # which becomes longer meanwhile
        children: list[CapturedFile | CapturedLink | int] = []
        for child in directory.children.values():
            if isinstance(child, CapturedDirectory):
                children.append(len(directories))
                directories.append(child)
            else:
                children.append(child)
        names, specials = _joined(directory.children), _joined(directory.here)
        rows.append(_Row(directory.entry, directory.permissions, specials, names, children))
    return rows


def _built(rows: list[_Row]) -> CapturedDirectory:
    built: dict[int, CapturedDirectory] = {}
    for number in reversed(range(len(rows))):  # a directory comes before those in it
        row = rows[number]
        children: dict[str, Captured] = {
            name: built.pop(child) if isinstance(child, int) else child
            for name, child in zip(_split(row.names), row.children, strict=True)
        }
        specials = frozenset(_split(row.specials))
        built[number] = CapturedDirectory(row.entry, children, row.permissions, specials)
    return built[0]


def _joined(names: Iterable[str]) -> bytes:
    return os.fsencode("/".join(names))


def _split(names: bytes) -> list[str]:
    return os.fsdecode(names).split("/") if names else []


def _digest(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()
