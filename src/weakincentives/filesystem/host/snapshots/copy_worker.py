"""A process that copies small files, so that a large copy keeps two processors busy.

The worker gets names and open directories, never a path. What it does not copy, and everything
that it was asked to copy when it ended early, is left to the caller.
"""

import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from weakincentives import posix
from weakincentives.filesystem.host.files import Identity
from weakincentives.posix import RECORD, encode_names, remove_partial

_SCRIPT = (sys.executable, "-I", "-S", str(Path(posix.__file__).with_name("small_files.py")))
_MAX_PENDING = 2  # requests: one that is worked on, and the next
_MAX_SECONDS = 60.0  # without a part of a response
_BUFFER = 256 * 1024


class CopiedFile(NamedTuple):
    """A file that the worker has copied."""

    identity: Identity
    blob: bytes
    """Git's object id of the content."""
    size: int
    deflated: bytes
    """The content as a zlib stream."""


@dataclass(slots=True)
class FileBatch:
    """Files of one directory to copy, and what was copied so far; None for what was not."""

    directory: str
    names: list[str]
    copied: list[CopiedFile | None] = field(default_factory=list[CopiedFile | None])


class CopyWorker:
    """Copies batches of files in another process; one that fails does nothing more."""

    def __init__(self) -> None:
        """Start the process."""
        self._pending: deque[FileBatch] = deque()
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_MAX_SECONDS)
        self._process: subprocess.Popen[bytes] | None = None
        with other:
            try:
                self._process = subprocess.Popen(
                    _SCRIPT,
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt at the terminal is not for it
                    env={},
                    cwd="/",
                )
            except OSError:
                self._connection.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._stop()

    @property
    def has_room(self) -> bool:
        """Whether it takes another batch now."""
        return self._process is not None and len(self._pending) < _MAX_PENDING

    def submit(self, batch: FileBatch, source: int, target: int) -> bool:
        """Ask for a copy of files between open directories; return False if it is not possible."""
        try:
            socket.send_fds(self._connection, [encode_names(batch.names)], [source, target])
        except OSError:
            self._stop()
            return False
        self._pending.append(batch)
        return True

    def receive(self, *, wait: bool = False) -> Iterator[FileBatch]:
        """Yield the batches that are done; with `wait`, all of them.

        After a failure, all are done, and those that are not complete have fewer results than
        names.
        """
        while self._pending and self._process is not None and (wait or self._is_readable()):
            batch = self._pending[0]
            if self._read(batch) and len(batch.copied) == len(batch.names):
                yield self._pending.popleft()
        if self._process is None:
            while self._pending:
                yield self._pending.popleft()

    def _is_readable(self) -> bool:
        return bool(select.select([self._connection], [], [], 0)[0])

    def _read(self, batch: FileBatch) -> bool:
        try:
            part = self._connection.recv(_BUFFER)
        except OSError:
            part = b""
        if not part:
            self._stop()
            return False
        batch.copied += _decode(part)
        return True

    def _stop(self) -> None:
        """End the process, and wait until it changes nothing any more."""
        process, self._process = self._process, None
        self._connection.close()
        if process is not None:
            process.kill()
            process.wait()


def remove_uncertain(batch: FileBatch, target: int) -> None:
    """Remove what a worker that failed may have left of the files that it did not report."""
    for name in batch.names[len(batch.copied) :]:
        remove_partial(target, name)


def _decode(part: bytes) -> Iterator[CopiedFile | None]:
    offset = 0
    while offset < len(part):
        size, length, blob, *identity = RECORD.unpack_from(part, offset)
        start = offset + RECORD.size
        offset = start + length
        device, inode, file_size, modified, changed, mode = identity
        found = (device, inode, file_size, modified, changed, mode)
        yield CopiedFile(found, blob, size, part[start:offset]) if length else None
