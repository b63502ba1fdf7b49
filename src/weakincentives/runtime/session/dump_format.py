"""The text of a dump: a header, then one line with the snapshot of each session.

The header says what has to follow, so a file that was cut off is never taken for a
whole one. Nothing that the text names is imported or called.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.posix import check_time
from weakincentives.runtime.session import snapshots
from weakincentives.runtime.session.snapshots import (
    Snapshot,
    SnapshotFormatError,
    UnknownTypeError,
    find_imported_type,
    read_snapshot,
    type_name,
)
from weakincentives.serde import SerdeError, convert, decode, encode

FORMAT = "wink-dump"
VERSION = 1
BEGINNING = b'{"format":"%s"' % FORMAT.encode()
Types: TypeAlias = Iterable[type[Any]] | Mapping[str, type[Any]]
_BATCH = 64  # items that are JSON at the same time
_MAX_HEADER = 64 * 1024**2  # bytes: a file without line ends is not read whole
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WHICH = "give the .jsonl file that dump_session_tree returned"
_COPY_AGAIN = "copy it again, or dump the session again"


class DumpError(WinkError, ValueError):
    """A dump cannot be loaded, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class DumpedArchive:
    """What tells the archive of a dump from any other file."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class DumpedSession:
    """A session in the tree; `parent` is the place of its parent in the list."""

    session_id: UUID
    snapshot_id: UUID
    parent: int | None
    created_at: datetime
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """The first line: what belongs to the dump."""

    format: str
    version: int
    created_at: datetime
    archive: DumpedArchive | None
    sessions: list[DumpedSession]


def dump_error(path: Path, fact: str, remedy: str = _COPY_AGAIN) -> DumpError:
    """Return the error that names a file, what is wrong with it and what to do."""
    return DumpError(f"{fact}: {str(path)!r} ({remedy})")


def encode_dump(header: DumpHeader, taken: Iterable[Snapshot]) -> Iterator[bytes]:
    """Yield the text of a dump, piece by piece.

    Raises:
        SerdeError: Something in it cannot be read back from JSON.
    """
    line = encode(header)
    decode(line, DumpHeader)
    yield line + b"\n"
    for snapshot in taken:
        yield from _snapshot_line(snapshot)


def read_header(path: Path, file: BinaryIO) -> DumpHeader:
    """Return the header of the dump in `file`, which is at `path`.

    Raises:
        DumpError: It is no dump, of another version, or damaged.
    """
    line = file.readline(_MAX_HEADER)
    try:
        data = decode(line, object)
    except SerdeError as error:
        if not line.endswith(b"\n"):
            raise dump_error(path, "Not a session dump, or cut off in its first line") from None
        raise dump_error(path, f"Not a session dump: {error}", _WHICH) from error
    _check_version(path, data)
    try:
        header = convert(data, DumpHeader)
    except SerdeError as error:
        raise dump_error(path, f"Header of the dump is damaged: {error}") from error
    flaw = _flaw(header)
    if flaw is not None:
        raise dump_error(path, f"Header of the dump is damaged: {flaw}")
    return header


def read_snapshots(path: Path, file: BinaryIO, header: DumpHeader, types: Types) -> list[Snapshot]:
    """Return the snapshots that follow the header.

    Raises:
        DumpError: The dump is cut off or damaged, or has a slice of a type that is neither in
            `types` nor a dataclass of a module that is imported.
    """
    found: list[Snapshot] = []
    size = os.fstat(file.fileno()).st_size  # no line is longer, even if the file grows
    for expected in header.sessions:
        line = file.readline(size)
        if not line.endswith(b"\n"):
            count = len(header.sessions)
            raise dump_error(path, f"Dump is cut off after {len(found)} of {count} sessions")
        number = len(found) + 2
        snapshot = _snapshot(path, number, line, types)
        if (snapshot.session_id, snapshot.snapshot_id) != (
            expected.session_id,
            expected.snapshot_id,
        ):
            raise dump_error(path, f"Line {number} of the dump belongs to another dump")
        found.append(snapshot)
    if file.read(1):
        raise dump_error(path, f"Dump goes on after its last session, line {len(found) + 1}")
    return found


def _snapshot(path: Path, number: int, line: bytes, types: Types) -> Snapshot:
    try:
        return read_snapshot(line, types, find=find_imported_type)
    except SnapshotFormatError as error:
        raise dump_error(path, f"Line {number} of the dump: {error}", _remedy(error)) from error


def _remedy(error: SnapshotFormatError) -> str:
    if isinstance(error, UnknownTypeError):
        moved = f"if it has moved, with this name: types={{{error.type_name!r}: ...}}"
        if error.type_name.partition(":")[0] in sys.modules:  # to import it again would not help
            return f"give the type in types=; {moved}"
        return f"give the type in types=, or import its module; {moved}"
    if "this program reads" in str(error):
        return "load it with a newer weakincentives"
    return _COPY_AGAIN


def _check_version(path: Path, data: object) -> None:
    match data:
        case {"format": str(name), "version": int(version)} if name == FORMAT:
            if version != VERSION:
                fact = f"Dump has version {version!r}, this program reads {VERSION!r}"
                raise dump_error(
                    path, fact, "load it with the weakincentives that wrote it, or newer"
                )
        case _:
            raise dump_error(path, f"Not a session dump: no format {FORMAT!r} and version", _WHICH)


def _flaw(header: DumpHeader) -> str | None:
    """Return what is wrong with a header, if anything."""
    archive = header.archive
    if archive is not None and (archive.size < 0 or not _SHA256.fullmatch(archive.sha256)):
        return f"no hash and size of an archive: {archive!r}"
    if not header.sessions:
        return "no sessions"
    for date in (header.created_at, *(each.created_at for each in header.sessions)):
        if date.tzinfo is None:
            return f"a date has no time zone: {date.isoformat()!r}"
    for place, each in enumerate(header.sessions):
        if (each.parent is None) != (place == 0) or not -1 < (each.parent or 0) < max(place, 1):
            return f"session {place} has no parent before it: {each.parent!r}"
    return None


def _snapshot_line(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield what `Snapshot.to_json` returns, and the end of the line, in pieces."""
    head = {
        "format": snapshots.FORMAT,
        "version": snapshots.VERSION,
        "snapshot_id": snapshot.snapshot_id,
        "session_id": snapshot.session_id,
        "created_at": snapshot.created_at,
        "tag": snapshot.tag,
    }
    yield encode(head)[:-1] + b',"slices":['
    comma = b""
    for kind in sorted(snapshot.slices, key=type_name):
        start = {"type": type_name(kind), "log": kind in snapshot.logs}
        yield comma + encode(start)[:-1] + b',"items":['
        yield from _items(snapshot.slices[kind], kind)
        yield b"]}"
        comma = b","
    yield b"]}\n"


def _items(items: tuple[Any, ...], kind: type[Any]) -> Iterator[bytes]:
    for start in range(0, len(items), _BATCH):
        check_time("Dump")
        batch = items[start : start + _BATCH]
        for each in batch:
            if type(each) is not kind:
                raise SerdeError(f"A slice of {kind.__qualname__} is stored without: {each!r}")
        try:
            data = encode(batch)
        except SerdeError as error:
            raise SerdeError(f"Slice {type_name(kind)!r}: {error}") from error
        yield (b"," if start else b"") + data[1:-1]
