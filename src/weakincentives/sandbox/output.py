"""Bounded capture of a process's output, and the non-blocking pipes it flows through.

An `OutputBuffer` keeps the head and the tail of a stream in constant memory.
"""

import os
import select
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Output:
    """Captured output of a stream: all of it, or its head and its tail.

    Args:
        head: The first bytes.
        tail: The last bytes; empty if nothing was dropped.
        dropped: How many bytes between head and tail were dropped.
    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.dropped > 0

    @property
    def data(self) -> bytes:
        """The bytes that were kept."""
        return self.head + self.tail

    @property
    def text(self) -> str:
        r"""The captured output as text; a line marks how many bytes were dropped, unless all were.

        Bytes that are not valid UTF-8 are shown as `\xff`.
        """
        if not self.data:
            return ""
        head = self.head.decode(errors="backslashreplace")
        if not self.dropped:
            return head + self.tail.decode(errors="backslashreplace")
        start = "" if not head or head.endswith("\n") else "\n"
        note = f"{start}[... {self.dropped:,} bytes left out ...]\n"
        return head + note + self.tail.decode(errors="backslashreplace")

    def shorten(self, limit: int) -> "Output":
        """Return at most `limit` bytes of it, from its head and its tail."""
        if len(self.data) <= limit:
            return self
        buffer = OutputBuffer(limit)
        buffer.feed(self.data)
        cut = buffer.output()
        return Output(cut.head, cut.tail, cut.dropped + self.dropped)


class OutputBuffer:
    """Keeps at most `limit` bytes of a stream: its head and its tail. Thread-safe."""

    def __init__(self, limit: int, sink: Callable[[bytes], object] | None = None) -> None:
        """Keep up to `limit` bytes: half from the beginning, half from the end.

        Everything is also passed to `sink`, as it arrives.
        """
        self.sink: Callable[[bytes], object] | None = sink
        self.beginning: bytes = b""
        """The first bytes, whatever the limit."""
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._lock = Lock()
        self._clear()

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        with self._lock:
            self._feed(data)
        if len(self.beginning) < _MAX_BEGINNING:
            self.beginning += data[:_MAX_BEGINNING]
        if self.sink is not None and data:
            self.sink(data)

    def output(self) -> Output:
        """Return the bytes kept so far; no UTF-8 character is split."""
        with self._lock:
            return self._output()

    def take(self, *, is_end: bool = False) -> Output:
        """Return the bytes kept since the last call.

        Unless `is_end`, the beginning of a UTF-8 character stays for the next call.
        """
        with self._lock:
            found = self._output()
            self._clear()
            data = found.tail or found.head
            whole = data if is_end else _trim_partial_end(data)
            if len(whole) == len(data):
                return found
            self._feed(data[len(whole) :])
            return replace(found, tail=whole) if found.tail else replace(found, head=whole)

    def _clear(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def _feed(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not self._tail_size:
            return
        self._tail += data[-self._tail_size :]
        # trim only once the tail has doubled: amortized constant time per byte
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def _output(self) -> Output:
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_size :])
        if len(head) + len(tail) == self._total:
            return Output(head + tail)
        head, tail = _trim_partial_end(head), _trim_partial_start(tail)
        return Output(head, tail, self._total - len(head) - len(tail))


def _trim_partial_end(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of two, three or four bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            return data
    return data


def _trim_partial_start(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the start."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


_CHUNK = 64 * 1024
_MAX_BEGINNING = 2_000  # bytes
_MAX_DRAIN = 2 * 1024 * 1024  # more than the capacity of a pipe


class Pollable(Protocol):
    """A pollable file descriptor and its handler."""

    events: int

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        ...

    def serve(self) -> bool:
        """Read or write without blocking; return False at the end of the stream."""
        ...

    def close(self) -> None:
        """Close this end; idempotent."""
        ...


class Pipe:
    """A pipe to a child process: `local` is our non-blocking end, `remote` the child's."""

    events: int = select.POLLIN

    def __init__(self, *, writes: bool = False) -> None:
        """Create the pipe; if `writes`, the local end is the write end."""
        reader, writer = os.pipe()
        self._local, self.remote = (writer, reader) if writes else (reader, writer)
        os.set_blocking(self._local, False)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._local

    def close_remote(self) -> None:
        """Close our copy of the child's end, once the child has its own."""
        if self.remote >= 0:
            os.close(self.remote)
            self.remote: int = -1

    def close(self) -> None:
        """Close both ends; idempotent."""
        self.close_remote()
        if self._local >= 0:
            os.close(self._local)
            self._local = -1


class Reader(Pipe):
    """Standard output or standard error of a process."""

    def __init__(self, buffer: OutputBuffer) -> None:
        """Feed everything that is read to a buffer."""
        super().__init__()
        self._buffer = buffer

    def serve(self) -> bool:
        """Read one chunk; return False at the end of the stream."""
        try:
            data = os.read(self._local, _CHUNK)
        except BlockingIOError:
            return True
        self._buffer.feed(data)
        return bool(data)

    def drain(self) -> None:
        """Read what the pipe still holds, without waiting: any remaining writer is not ours."""
        for _ in range(_MAX_DRAIN // _CHUNK):
            try:
                data = os.read(self._local, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self._buffer.feed(data)


class Writer(Pipe):
    """Standard input of a process."""

    events: int = select.POLLOUT

    def __init__(self, data: bytes) -> None:
        """Write `data` as fast as the process reads it, then close."""
        super().__init__(writes=True)
        self._left = memoryview(data)

    def serve(self) -> bool:
        """Write what fits; return False once all is written or the reader is gone."""
        try:
            self._left = self._left[os.write(self._local, self._left) :]
        except BlockingIOError:
            return True
        except OSError:
            self._left = memoryview(b"")
        if not self._left:
            self.close()
        return bool(self._left)
