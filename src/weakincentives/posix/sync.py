"""Files that are brought to the disk together: what was written, and nothing else.

A file system that is synced as a whole waits for everybody's dirty pages. One file after
the other waits for the disk each time. So files stay open until there are some; all of
them begin to be written, and then the disk is waited for once, or nearly so.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

_MAX_OPEN = 256
_THREADS = 64  # the disk does what many wait for in one step
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)


class SyncQueue:
    """Open files and directories on their way to the disk; they are closed afterwards.

    Use it in a with statement: leaving the block after an error only closes them.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._open: list[int] = []

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Bring everything to the disk, unless something has failed."""
        try:
            if kind is None:
                self.flush()
        finally:
            self._close()

    def add(self, descriptor: int) -> None:
        """Take over an open file, to which everything has been written."""
        self._open.append(descriptor)
        _start_writing(descriptor)
        if len(self._open) >= _MAX_OPEN:
            self.flush()

    def flush(self) -> None:
        """Return when everything that was added is on the disk.

        Raises:
            OSError: A file could not be written; what is on the disk is not known.
        """
        try:
            if len(self._open) <= 1:
                for descriptor in self._open:
                    os.fsync(descriptor)
                return
            with ThreadPoolExecutor(min(_THREADS, len(self._open))) as pool:
                for _ in pool.map(os.fsync, self._open):
                    pass
        finally:
            self._close()

    def _close(self) -> None:
        descriptors, self._open = self._open, []
        for descriptor in descriptors:
            os.close(descriptor)


def _start_writing(descriptor: int) -> None:
    """Let the kernel begin to write a file; it is only faster, so it may fail."""
    with suppress(AttributeError):  # not every system has it
        length = ctypes.c_int64(0)  # to the end
        _libc.sync_file_range(descriptor, ctypes.c_int64(0), length, _SYNC_FILE_RANGE_WRITE)
