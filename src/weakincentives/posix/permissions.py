"""File permissions: set them, or override them for a moment.

An agent can remove every permission from a file that we own. As the owner we can still grant
ourselves access, so the file can be captured and replaced.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from weakincentives.posix.descriptors import OpenDescriptor

_PIN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def make_accessible(descriptor: int) -> int:
    """Grant the owner all permissions on an open file; return the permissions it had.

    Raises:
        PermissionError: It belongs to another user.
    """
    before = stat.S_IMODE(os.fstat(descriptor).st_mode)
    set_mode(descriptor, before | stat.S_IRWXU)
    return before


def set_permissions(directory: int, name: str, permissions: int) -> None:
    """Set the permissions of `name` in an open directory; a link is not followed.

    Raises:
        PermissionError: It belongs to another user.
    """
    with pin(directory, name) as descriptor:
        set_mode(descriptor, permissions)


@contextmanager
def grant_owner_access(directory: int, name: str) -> Generator[None, None, None]:
    """Grant the owner all permissions on `name` in an open directory, inside the with block."""
    with pin(directory, name) as descriptor:
        before = make_accessible(descriptor)
        try:
            yield
        finally:
            restore_mode(descriptor, before)


def restore_mode(descriptor: int, before: int) -> None:
    """Undo `make_accessible`, unless somebody has set other permissions since."""
    if stat.S_IMODE(os.fstat(descriptor).st_mode) == before | stat.S_IRWXU:
        set_mode(descriptor, before)


def pin(directory: int, name: str) -> OpenDescriptor:
    """Return an `O_PATH` descriptor of `name` in an open directory; nothing is opened."""
    return OpenDescriptor(os.open(name, _PIN, dir_fd=directory))


def set_mode(descriptor: int, permissions: int) -> None:
    """Set the permissions of a descriptor, which may be an `O_PATH` one."""
    Path(f"/proc/self/fd/{descriptor}").chmod(permissions)
