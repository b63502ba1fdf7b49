"""Advisory locks (`flock`) on open files and directories: they end with their process."""

import errno
import fcntl
import os

from weakincentives.posix.descriptors import OpenDescriptor

_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""The errors of file systems that have no locks, or none on directories."""
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Apply an operation of `fcntl.flock`; return False if another process keeps it waiting.

    Where there are no locks, this does nothing and returns True.
    """
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process has locked a file or directory; False if it cannot be opened."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    with OpenDescriptor(descriptor):
        return not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
