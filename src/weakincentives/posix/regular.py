"""Opening a file by its path: a regular one of bounded size, and never anything else.

What is expected to be a configuration, a record or a recording may be a pipe, a device or a
giant that somebody has put there. The file is pinned without being opened, looked at, and
opened only if it is regular: nothing waits for a pipe, and no device is touched.
"""

import errno
import os
import stat
from pathlib import Path

from weakincentives.posix.paths import os_error

O_PATH: int = getattr(os, "O_PATH", os.O_RDONLY)
HAS_PROC = Path("/proc/self/fd").is_dir()
_PINNING = O_PATH | os.O_CLOEXEC
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1024 * 1024


def open_regular(
    path: str | os.PathLike[str], *, follow_links: bool = False
) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor and its metadata.

    Links are for those who named the file themselves: with `follow_links` a link to a
    regular file will do. A file that was found is never followed to another place.

    Raises:
        PermissionError: A link, directory, pipe, socket or device is there.
        OSError: The file cannot be opened.
    """
    flags = 0 if follow_links else os.O_NOFOLLOW
    name = os.fspath(path)
    try:
        if HAS_PROC:
            return open_pinned(os.open(name, _PINNING | flags), name)
        return _open_by_name(name, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise _refusal(name) from None
        raise


def read_regular(
    path: str | os.PathLike[str], max_bytes: int, *, follow_links: bool = False
) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises:
        PermissionError: A link, directory, pipe, socket or device is there; see `open_regular`.
        OSError: The file cannot be read, or is larger, which is noticed before it is read.
    """
    descriptor, found = open_regular(path, follow_links=follow_links)
    try:
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        pieces: list[bytes] = []
        room = max_bytes + 1  # it may grow meanwhile
        while room > 0 and (piece := os.read(descriptor, min(_PIECE, room))):
            pieces.append(piece)
            room -= len(piece)
    finally:
        os.close(descriptor)
    if room <= 0:
        raise _too_large(path, max_bytes)
    return b"".join(pieces)


def open_pinned(pinned: int, path: str) -> tuple[int, os.stat_result]:
    """Open the file that the descriptor `pinned` holds on to, if it is regular; close `pinned`."""
    try:
        found = check_regular(os.fstat(pinned), path)
        return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_CLOEXEC), found
    except OSError as error:
        # the kernel names the descriptor, which says nothing to anybody
        raise os_error(error.errno or errno.EIO, path, error.strerror or "") from None
    finally:
        os.close(pinned)


def check_regular(found: os.stat_result, path: str) -> os.stat_result:
    """Return `found` if it is of a regular file; PermissionError if not."""
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(path)
    return found


def _open_by_name(path: str, flags: int) -> tuple[int, os.stat_result]:
    """Without /proc: look, open without waiting, and look again at what was opened."""
    check_regular(Path(path).stat(follow_symlinks=not flags), path)
    descriptor = os.open(path, _WITHOUT_WAITING | flags)
    try:
        return descriptor, check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise


def _refusal(path: str) -> OSError:
    return os_error(errno.EPERM, path, "Not a regular file")


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> OSError:
    return os_error(errno.EFBIG, os.fspath(path), f"Larger than {max_bytes:,} bytes")
