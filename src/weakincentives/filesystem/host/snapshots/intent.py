"""An intent: what is being done, on the disk before it is done.

The record has its place on the disk from the beginning, so that it can be written when the
disk is full. It is whole or it is not there: a checksum tells.
"""

import errno
import hashlib
import os
from pathlib import Path

import msgspec

from weakincentives.posix import os_error, read_regular, sync_directory

_SIZE = 4096
# there is none, or it is somebody else's, which is told to who wants to use it
_NO_RECORD = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES),
        *(errno.EPERM, errno.EFBIG),  # no regular file, or none that we have written
    }
)


class Intent(msgspec.Struct, frozen=True):
    """A restore that has been decided: the files become those of `commit`.

    `root` is the device and inode of the directory that it was decided for. With `paths` only
    what is at and below them becomes so.
    """

    commit: str
    root: tuple[int, int]
    paths: tuple[str, ...] | None = None


class IntentFile:
    """The place of the record, in a store."""

    def __init__(self, path: Path) -> None:
        """Use `path`, made by `prepare`."""
        self._path = path

    def prepare(self) -> None:
        """Take the place on the disk, once."""
        if not self._path.exists():
            self._write(b"")
            sync_directory(self._path.parent)

    def read(self) -> Intent | None:
        """Return what was decided and is not finished, or None."""
        try:
            data = read_regular(self._path, _SIZE)
        except OSError as error:
            if error.errno in _NO_RECORD:
                return None
            raise
        digest, _, rest = data.partition(b"\n")
        record, _, _ = rest.partition(b"\n")
        if digest != hashlib.sha256(record).hexdigest().encode() or not record:
            return None
        try:
            return msgspec.json.decode(record, type=Intent)
        except msgspec.MsgspecError:
            return None

    def write(self, intent: Intent) -> None:
        """Record `intent`, on the disk when this returns."""
        self._write(msgspec.json.encode(intent))

    def clear(self) -> None:
        """Record that nothing is unfinished."""
        self._write(b"")

    def _write(self, record: bytes) -> None:
        digest = hashlib.sha256(record).hexdigest().encode()
        data = (digest + b"\n" + record + b"\n").ljust(_SIZE, b"\0")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if os.pwrite(descriptor, data, 0) != len(data):
                raise os_error(errno.ENOSPC, str(self._path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
