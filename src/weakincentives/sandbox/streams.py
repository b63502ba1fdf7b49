"""Pipes to a command and from it, served without ever waiting."""

import os
import select
from collections.abc import Callable
from typing import Protocol

from weakincentives.sandbox.capture import Capture
from weakincentives.sandbox.results import Output

_CHUNK = 64 * 1024
_MAX_DRAINED = 2 * 1024 * 1024  # more than a pipe holds


class Stream(Protocol):
    """Something to wait for, and what to do when it is ready."""

    events: int

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        ...

    def serve(self) -> bool:
        """Do what can be done at once; return whether there will be more."""
        ...

    def close(self) -> None:
        """Close this end; twice is harmless."""
        ...


class Pipe:
    """A pipe: one end is served here, the other is for a process."""

    events: int = select.POLLIN

    def __init__(self, *, writes: bool = False) -> None:
        """Make it; `writes` says which end is ours."""
        reading, writing = os.pipe()
        self._ours, self.theirs = (writing, reading) if writes else (reading, writing)
        os.set_blocking(self._ours, False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._ours

    def hand_over(self) -> None:
        """Close the end that a process has by now."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs: int = -1

    def close(self) -> None:
        """Close both ends; twice is harmless."""
        self.hand_over()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1


class Reader(Pipe):
    """What a process prints."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes of it."""
        super().__init__()
        self._capture = Capture(limit)
        self.output: Callable[[], Output] = self._capture.output

    def serve(self) -> bool:
        """Read what is there; return False at the end."""
        try:
            data = os.read(self._ours, _CHUNK)
        except BlockingIOError:
            return True
        self._capture.feed(data)
        return bool(data)

    def drain(self) -> None:
        """Read what is left, without waiting for more: who writes now is none of ours."""
        for _ in range(_MAX_DRAINED // _CHUNK):
            try:
                data = os.read(self._ours, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self._capture.feed(data)


class Writer(Pipe):
    """What a process is given to read."""

    events: int = select.POLLOUT

    def __init__(self, data: bytes) -> None:
        """Write `data` as it is asked for, then end."""
        super().__init__(writes=True)
        self._left = memoryview(data)

    def serve(self) -> bool:
        """Write what fits; return False when all is written, or nobody reads any more."""
        try:
            self._left = self._left[os.write(self._ours, self._left) :]
        except BlockingIOError:
            return True
        except OSError:
            self._left = memoryview(b"")
        if not self._left:
            self.close()
        return bool(self._left)
