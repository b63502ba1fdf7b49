"""Frames between host and runner, and the poll loop that sends them.

It runs inside the container too, so it imports only the standard library.
"""

import os
import select
import struct
from collections.abc import Callable

PROTOCOL = 1
"""The version of the protocol; both sides must agree."""

HEADER = struct.Struct(">IBI")
"""The header of a frame: number of the command or call, kind, size of the payload."""

MAX_FRAME = 64 * 1024 * 1024
"""The largest payload of a frame, in bytes."""

WINDOW = 1024 * 1024
"""Bytes of a command's output or input that may be on their way, until the other side confirms."""

START, INPUT, STOP, CONFIRM, CALL = range(1, 6)
"""Kinds of frames to the runner."""

READY, STDOUT, STDERR, REPORT, ACCEPTED, REPLY, END = range(1, 8)
"""Kinds of frames from the runner."""

COUNT = struct.Struct(">Q")
"""The payload of `CONFIRM` and `ACCEPTED`: a number of bytes."""


class FrameLoop:
    """A poll loop with handlers; it sends frames to the host."""

    def __init__(self) -> None:
        """Start without handlers."""
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def run(self) -> None:
        """Call handlers for good; one of them ends the process."""
        while True:
            for descriptor, _ in self._poll.poll():
                handler = self._handlers.get(descriptor)
                if handler is not None:  # an earlier one may have unregistered it
                    handler()

    def register(self, descriptor: int, events: int, handler: Callable[[], None]) -> None:
        """Call `handler` when a descriptor is ready."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        """Stop polling a descriptor; idempotent."""
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def send(self, number: int, kind: int, payload: bytes = b"") -> None:
        """Send a frame; blocks while the host is slow, which the window bounds."""
        left = memoryview(HEADER.pack(number, kind, len(payload)) + payload)
        while left:
            left = left[os.write(1, left) :]
