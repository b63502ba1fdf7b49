"""Frames between a worker process and this one: JSON with a length in front, bounded.

Both sides use this module, so it imports only the standard library. Neither side trusts the
other with memory: a frame that is longer than the limit is refused before it is read.
"""

import json
import socket
import struct
from typing import Any

MAX_REPLY = 64 * 1024 * 1024
"""Bytes in a frame to a worker: a file that the code reads, as escaped text."""

MAX_MESSAGE = 2 * 1024 * 1024
"""Bytes in a frame from a worker, whose sender may be hostile."""

_HEADER = struct.Struct(">I")


class FrameError(ValueError):
    """A frame is too long, incomplete, or not what the protocol allows."""


def send_frame(connection: socket.socket, message: object, limit: int) -> None:
    """Send a message.

    Raises:
        FrameError: It is too long; nothing was sent.
        OSError: The other side is gone, or does not read in time.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > limit:
        raise FrameError(f"The message has {len(data)} bytes, {limit} are allowed")
    connection.sendall(_HEADER.pack(len(data)) + data)


def receive_frame(connection: socket.socket, limit: int) -> bytes:
    """Return the next frame; empty if the other side has closed the connection.

    Raises:
        FrameError: It is too long, or ends early.
        OSError: Nothing arrived in time.
    """
    header = _receive(connection, _HEADER.size)
    if not header:
        return b""
    if len(header) < _HEADER.size:
        raise FrameError("The connection ended within a frame")
    (size,) = _HEADER.unpack(header)
    if not 0 < size <= limit:
        raise FrameError(f"A frame has {size} bytes, {limit} are allowed")
    data = _receive(connection, size)
    if len(data) < size:
        raise FrameError("The connection ended within a frame")
    return data


def receive_message(connection: socket.socket, limit: int) -> Any:
    """Return the next message of a trusted sender; None if it has closed the connection."""
    data = receive_frame(connection, limit)
    return json.loads(data) if data else None


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        more = connection.recv(min(size - len(parts), 1024 * 1024))
        if not more:
            break
        parts += more
    return bytes(parts)
