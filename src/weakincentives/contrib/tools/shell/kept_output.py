"""Kept output: what a command prints beyond the size of a result, in a file of the workspace.

The output is spooled to a temporary file while the command prints, and stored through the
filesystem when it has ended: the model reads it with the tools it has for files, and undoing
the call removes it. The files are in `TOOL_OUTPUT`, which is not part of the project: searches
and git ignore it, and a review neither shows nor applies it.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import IO, Self

from weakincentives.characters import strip_byte_escapes
from weakincentives.filesystem import FileEntry, Filesystem, Rewritable
from weakincentives.filesystem.base import TOOL_OUTPUT

MAX_KEPT_OUTPUT = 16 * 1024 * 1024
"""Bytes of each stream that are kept."""
MAX_KEPT_FILES = 20
"""Files of earlier commands that stay, the newest."""
_MAX_KEPT_BYTES = 64 * 1024 * 1024  # in all these files together
_MAX_MEMORY = 256 * 1024  # bytes of a stream before it is spooled to disk
_MAX_TAIL = 16 * 1024  # bytes
_NAME = re.compile(r"(\d+)-(?:stdout|stderr)\.txt")


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The file with the output of one stream.

    Args:
        path: Where it is; empty if it could not be stored.
        kept: The number of bytes in it.
        size: The number of bytes that the command printed.
        problem: Why it could not be stored.
    """

    path: str
    kept: int
    size: int
    problem: str = ""


class OutputSpool:
    """The whole output of a command, up to a limit, while it runs and until it is stored."""

    def __init__(self, limit: int = MAX_KEPT_OUTPUT) -> None:
        """Keep up to `limit` bytes of each stream."""
        self._streams: Mapping[str, _Spool] = {"stdout": _Spool(limit), "stderr": _Spool(limit)}
        self._lock = Lock()
        self._is_closed = False
        self.tail: bytes = b""
        """The end of both streams, in the order in which they were printed."""

    def feed(self, stream: str, data: bytes) -> None:
        """Add the next bytes of a stream; this is an `OutputListener`."""
        with self._lock:
            self.tail = (self.tail + data[-_MAX_TAIL:])[-_MAX_TAIL:]
            if not self._is_closed:  # a background process prints on
                self._streams[stream].feed(data)

    def store(self, filesystem: Filesystem, *streams: str) -> dict[str, KeptFile]:
        """Write streams to files of the workspace; return a file for each that was fed."""
        wanted = {name: self._streams[name] for name in streams if self._streams[name].size}
        if not wanted:
            return {}
        try:
            number = _make_room(filesystem, sum(each.kept for each in wanted.values()))
        except (OSError, ValueError) as error:
            return {name: each.describe(str(error)) for name, each in wanted.items()}
        return {
            name: _store(filesystem, f"{TOOL_OUTPUT}/{number}-{name}.txt", each)
            for name, each in wanted.items()
        }

    def __enter__(self) -> Self:
        """Return the spool."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the temporary files."""
        with self._lock:
            self._is_closed = True
            for each in self._streams.values():
                each.close()


class _Spool:
    """One stream: the bytes that are kept, and how many there were."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MAX_MEMORY)  # noqa: SIM115 # `close` closes it
        self.size = 0
        self.kept = 0

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        part = data[: self._limit - self.kept]
        if not part:
            return
        try:
            self._file.write(part)
            self.kept += len(part)
        except OSError:  # the disk is full, which is no reason to stop the command
            self._limit = self.kept

    def read(self) -> bytes:
        self._file.seek(0)
        return self._file.read(self.kept)

    def describe(self, problem: str) -> KeptFile:
        return KeptFile("", self.kept, self.size, problem)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written
            self._file.close()


def _store(filesystem: Filesystem, path: str, spool: _Spool) -> KeptFile:
    try:
        data = strip_byte_escapes(spool.read())
        if isinstance(filesystem, Rewritable):
            filesystem.write_bytes(path, b"", mode="create")
            # of any size: the limit on one write is for models
            filesystem.replace_content(path, data)
        else:
            filesystem.write_bytes(path, data, mode="create")
    except (OSError, ValueError) as error:
        return spool.describe(str(error))
    return KeptFile(path, len(data), spool.size - spool.kept + len(data))


def _make_room(filesystem: Filesystem, size: int) -> int:
    """Remove old files until `size` bytes more are allowed; return the number of the new ones."""
    if not filesystem.exists(TOOL_OUTPUT):
        filesystem.write(f"{TOOL_OUTPUT}/.gitignore", "*\n")
    files = sorted(_list_numbered(filesystem), key=lambda each: each[0], reverse=True)
    total = size
    for position, (_, entry) in enumerate(files, start=1):
        total += filesystem.stat(entry.path).size_bytes
        if position >= MAX_KEPT_FILES or total > _MAX_KEPT_BYTES:
            filesystem.delete(entry.path)
    return files[0][0] + 1 if files else 1


def _list_numbered(filesystem: Filesystem) -> Iterator[tuple[int, FileEntry]]:
    for entry in filesystem.list(TOOL_OUTPUT):
        match = _NAME.fullmatch(entry.name)
        if match is not None and entry.is_file:
            yield int(match[1]), entry
