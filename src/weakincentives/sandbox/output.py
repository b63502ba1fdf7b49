"""The beginning and the end of a stream, in memory that does not grow with it."""

import os
import select
from collections.abc import Callable
from typing import Protocol

from weakincentives.sandbox.protocol import Output


class Capture:
    """Takes a stream in and keeps no more than `limit` bytes of it."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes: half from the beginning, half from the end."""
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not self._tail_size:
            return
        self._tail += data[-self._tail_size :]
        # cutting off twice as much half as often costs nothing per byte
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def output(self) -> Output:
        """Return what was kept; no character is cut in two."""
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_size :])
        if len(head) + len(tail) == self._total:
            return Output(head + tail)
        head, tail = _without_half_at_end(head), _without_half_at_start(tail)
        return Output(head, tail, self._total - len(head) - len(tail))


def _without_half_at_end(data: bytes) -> bytes:
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of two, three or four bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            return data
    return data


def _without_half_at_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


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
