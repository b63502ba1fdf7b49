"""Overlays: directories on the host with the workspace of a section and its snapshots.

An overlay is locked while it is in use. The kernel releases the lock when the process ends,
however it ends, so an overlay without a lock is a leftover.
"""

import fcntl
import os
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from weakincentives.posix import OpenDescriptor, remove_tree

_FOLDER = "podman"


class Overlay:
    """A new directory below the cache; `remove`, garbage collection or exit deletes it."""

    def __init__(self, cache: Path) -> None:
        """Create and lock it."""
        folder = cache / _FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / uuid4().hex
        with _lock(folder):  # nobody looks for leftovers before the new one is locked
            path.mkdir(mode=0o700)
            descriptor = _open(path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.workspace: Path = path / "workspace"
        self.snapshots: Path = path / "snapshots"
        self.workspace.mkdir(mode=0o700)
        self.remove: Callable[[], object] = weakref.finalize(
            self, _remove_own, path, descriptor, os.getpid()
        )


def prune_overlays(cache: Path) -> list[str]:
    """Remove the overlays of processes that have ended; return their paths."""
    folder = cache / _FOLDER
    if not folder.is_dir():
        return []
    with _lock(folder):
        return [str(path) for path in sorted(folder.iterdir()) if _remove_leftover(path)]


def _remove_leftover(path: Path) -> bool:
    """Remove an overlay unless a process uses it; return whether it was removed."""
    try:
        with OpenDescriptor(_open(path)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
    except OSError:
        return False  # not a directory, gone, in use, or of another user
    return True


def _remove_own(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # otherwise this process is a fork of the owner
        with suppress(OSError):
            _remove(path)
    os.close(descriptor)


def _remove(path: Path) -> None:
    with OpenDescriptor(_open(path.parent)) as folder:
        remove_tree(folder, path.name)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _lock(folder: Path) -> Generator[None, None, None]:
    with OpenDescriptor(_open(folder)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
