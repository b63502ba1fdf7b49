"""Frames between a worker and the process that started it: a length, then bytes, with a bound.

`read_lines` does the same for lines: they are of bounded length, whoever sends them.

Both sides use this module, also inside containers, so it imports only the standard library.
Neither side trusts the other with memory: a frame that is longer than the limit is refused before
it is read.
"""

import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Sequence

MAX_DESCRIPTORS = 32
"""How many descriptors one frame can carry."""

_HEADER = struct.Struct(">I")
_CHUNK = 1024 * 1024


class FrameError(ValueError):
    """A frame is too long, incomplete, or not what the protocol allows."""


def encode_frame(data: bytes) -> bytes:
    """Return the frame of these bytes."""
    return _HEADER.pack(len(data)) + data


def split_frame(received: bytes | bytearray, limit: int) -> tuple[bytes, int] | None:
    """Return the first frame of what has been received, and where it ends; None while it is short.

    Raises:
        FrameError: It is longer than the limit, or empty.
    """
    if len(received) < _HEADER.size:
        return None
    end = _HEADER.size + _read_size(received, limit)
    return (bytes(memoryview(received)[_HEADER.size : end]), end) if len(received) >= end else None


def send_frame(
    connection: socket.socket, data: bytes, limit: int, descriptors: Sequence[int] = ()
) -> None:
    """Send bytes, and copies of descriptors.

    Raises:
        FrameError: There are too many bytes; nothing was sent.
        OSError: The other side is gone, or does not read in time.
    """
    if len(data) > limit:
        raise FrameError(f"The message has {len(data)} bytes, {limit} are allowed")
    frame = encode_frame(data)
    sent = socket.send_fds(connection, [frame], descriptors) if descriptors else 0
    connection.sendall(frame[sent:])


def receive_frame(
    connection: socket.socket, limit: int, descriptors: list[int] | None = None
) -> bytes:
    """Return the next frame; empty if the other side has closed the connection.

    Args:
        connection: A stream socket.
        limit: Bytes that the frame may have.
        descriptors: Gets the descriptors that come with it; without it, there must be none.

    Raises:
        FrameError: It is too long, or ends early.
        OSError: Nothing arrived in time.
    """
    header = _receive(connection, _HEADER.size, descriptors)
    if not header:
        return b""
    if len(header) < _HEADER.size:
        raise FrameError("The connection ended within a frame")
    size = _read_size(header, limit)
    data = _receive(connection, size, descriptors)
    if len(data) < size:
        raise FrameError("The connection ended within a frame")
    return data


async def read_lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncGenerator[bytes, None]:
    """Yield lines without their end; of one longer than `limit`, only a little more than that."""
    line = bytearray()
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            yield bytes(line)
            line.clear()
        if len(line) <= limit:
            line += rest
    if line:
        yield bytes(line)


def receive_descriptors(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Return at most `size` bytes, and the descriptors that come with them.

    No program that this process starts inherits them.
    """
    data, found, _, _ = socket.recv_fds(connection, size, MAX_DESCRIPTORS)
    for each in found:
        os.set_inheritable(each, False)  # noqa: FBT003 # positional-only in the standard library
    return data, found


def _read_size(header: bytes | bytearray, limit: int) -> int:
    (size,) = _HEADER.unpack_from(header)
    if not 0 < size <= limit:
        raise FrameError(f"A frame has {size} bytes, {limit} are allowed")
    return size


def _receive(connection: socket.socket, size: int, descriptors: list[int] | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        wanted = min(size - len(parts), _CHUNK)
        if descriptors is None:
            more = connection.recv(wanted)
        else:
            more, found = receive_descriptors(connection, wanted)
            descriptors += found
        if not more:
            break
        parts += more
    return bytes(parts)
