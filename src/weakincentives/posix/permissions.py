"""Files and directories that are closed to their owner: opened up, and closed again.

An agent can take every permission away from a file of ours. It is still ours: it can be
kept, and replaced.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PINNED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def make_accessible(descriptor: int) -> int:
    """Let the owner do everything with what is open; return the permissions before.

    Raises:
        PermissionError: It belongs to somebody else.
    """
    before = stat.S_IMODE(os.fstat(descriptor).st_mode)
    set_mode(descriptor, before | stat.S_IRWXU)
    return before


def set_permissions(directory: int, name: str, permissions: int) -> None:
    """Set the permissions of `name` in an open directory; a link is not followed.

    Raises:
        PermissionError: It belongs to somebody else.
    """
    with pin(directory, name) as descriptor:
        set_mode(descriptor, permissions)


@contextmanager
def grant_owner_access(directory: int, name: str) -> Generator[None, None, None]:
    """Let the owner do everything with `name` in an open directory, for a while."""
    with pin(directory, name) as descriptor:
        before = make_accessible(descriptor)
        try:
            yield
        finally:
            set_mode(descriptor, before)


@contextmanager
def pin(directory: int, name: str) -> Generator[int, None, None]:
    """Hold on to what is called `name` in an open directory, without opening it."""
    descriptor = os.open(name, _PINNED, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def set_mode(descriptor: int, permissions: int) -> None:
    """Set the permissions of what is open, or only held on to."""
    Path(f"/proc/self/fd/{descriptor}").chmod(permissions)
