"""Copy small files between open directories, with their Git object id, here or in a worker.

A copy of a large tree spends its time on many small files: several system calls each. This
module copies one such file; as a worker, it does so for another process, over a socket. It
imports only the standard library, and little of that, so that the worker starts at once.

A request is the names of files, with the descriptors of both directories. The response has one
record for each of them: all zeros if the file was not copied, else its stat, object id and content
as an object of a pack.
"""

import hashlib
import os
import socket
import stat
import struct
import zlib

MAX_STORED = 256
"""Bytes of content that are not compressed."""
MAX_SMALL = 8 * 1024
"""Bytes of content that are compressed with a small window."""
_WINDOW, _MEMORY = 13, 6
_STORED = struct.Struct("<3sHH")  # zlib header, and the header of one stored block
_CHECKSUM = struct.Struct(">I")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = bytes(4096)
RECORD = struct.Struct("<II20sQQqqqI")
"""Of a response: the sizes of content and zlib stream, object id, and stat identity."""
_NOT_COPIED = bytes(RECORD.size)
_SEPARATOR = b"\0"
_DESCRIPTORS = 2  # that come with a request
_MAX_PENDING = 32 * 1024  # bytes of a response before a part of it is sent
MAX_REQUEST = 64 * 1024
"""Bytes of a request."""


def deflate_small(data: bytes) -> bytes:
    """Return small content as a zlib stream; most of the cost would be large tables."""
    size = len(data)
    if size <= MAX_STORED:  # compression would save too little for its time
        header = _STORED.pack(b"\x78\x01\x01", size, ~size & 0xFFFF)
        return header + data + _CHECKSUM.pack(zlib.adler32(data))
    deflater = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, _MEMORY)
    return deflater.compress(data) + deflater.flush()


def _hash_blob(data: bytes) -> bytes:
    """Return git's object id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


def read_small(
    directory: int, name: str, device: int, max_size: int
) -> tuple[bytes, os.stat_result] | None:
    """Return content and stat of a regular file in an open directory; None for anything else.

    That is a file that is larger, on another device, has just been replaced or cut, cannot be
    read, or has a block of zeros, which may become a hole.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
        size = found.st_size
        is_regular = stat.S_IFMT(found.st_mode) == stat.S_IFREG
        if not is_regular or size > max_size or found.st_dev != device:
            return None
        data = os.read(descriptor, size + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if len(data) != size or _BLOCK in data else (data, found)


def create_small(
    directory: int, name: str, data: bytes, like: os.stat_result
) -> tuple[int, int, int, int, int, int]:
    """Create a file with the permissions and times of another; return its stat identity.

    Raises:
        OSError: It exists, or cannot be written.
    """
    permissions = stat.S_IMODE(like.st_mode)
    descriptor = os.open(name, _CREATE, permissions & 0o777, dir_fd=directory)
    try:
        rest = data
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.utime(descriptor, ns=(like.st_mtime_ns, like.st_mtime_ns))
        found = os.fstat(descriptor)
        if stat.S_IMODE(found.st_mode) != permissions:  # the umask, or a bit beyond the nine
            os.fchmod(descriptor, permissions)
            found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )


def encode_names(names: list[str]) -> bytes:
    """Return the request to copy files with these names."""
    return _SEPARATOR.join(map(os.fsencode, names))


def serve(connection: socket.socket) -> None:
    """Answer requests until the other side closes the connection."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST, _DESCRIPTORS)
        if not request:
            return
        source, target = descriptors
        try:
            device = os.fstat(source).st_dev
            pending = bytearray()
            for name in request.split(_SEPARATOR):
                pending += _copy(source, target, os.fsdecode(name), device)
                if len(pending) > _MAX_PENDING:
                    connection.sendall(pending)
                    pending.clear()
            if pending:
                connection.sendall(pending)
        finally:
            os.close(source)
            os.close(target)


def _copy(source: int, target: int, name: str, device: int) -> bytes:
    """Copy a file; return its record."""
    read = read_small(source, name, device, MAX_SMALL)
    if read is None:
        return _NOT_COPIED
    data, found = read
    try:
        identity = create_small(target, name, data, found)
    except OSError:
        remove_partial(target, name)
        return _NOT_COPIED  # the other side tries again, and knows what to do about an error
    deflated = deflate_small(data)
    return RECORD.pack(len(data), len(deflated), _hash_blob(data), *identity) + deflated


def remove_partial(directory: int, name: str) -> None:
    """Remove a file that may be there."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        return


def main() -> None:
    """Serve the socket that standard input is."""
    with socket.socket(fileno=os.dup(0)) as own:
        serve(own)
