"""Files that are written out of sight, brought to the disk together, and then named."""

import _thread
import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.paths import os_error
from weakincentives.filesystem.staging import write_all

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HiddenFile:
    """A new file that nobody sees; it is gone after the with block unless it was named."""

    def __init__(self, directory: Path, data: bytes = b"") -> None:
        """Write `data` to a new file in `directory`."""
        self._path = directory / temporary_name()
        self._is_named = False
        with _told(directory):
            self.descriptor: int = os.open(self._path, _NEW_FILE, 0o600)
            try:
                write_all(self.descriptor, data)
            except BaseException:
                self.__exit__()
                raise

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, and remove it unless it has a name."""
        try:
            os.close(self.descriptor)
        finally:
            if not self._is_named:
                self._path.unlink(missing_ok=True)

    def name(self, target: Path) -> None:
        """Give the file its name, in place of what has it."""
        with _told(target):
            self._path.rename(target)
        self._is_named = True


@contextmanager
def _told(path: Path) -> Generator[None, None, None]:
    """Let errors name `path`, and not what nobody sees."""
    try:
        yield
    except OSError as error:
        raise os_error(error.errno or errno.EIO, str(path), error.strerror or "") from error


def sync_files(descriptors: Sequence[int]) -> None:
    """Bring the content of files to the disk.

    All at once, for what the disk has to do is nearly the same for one and for many.
    """
    failures: list[BaseException] = []
    # threads of the lowest kind: to start others takes as long as many a disk
    others = [_started(each, failures) for each in descriptors[1:]]
    for descriptor in descriptors[:1]:
        _sync(descriptor, failures)
    for lock in others:
        lock.acquire()
    if failures:
        raise failures[0]


def _started(descriptor: int, failures: list[BaseException]) -> _thread.LockType:
    """Begin to sync a file; return a lock that is free when that is done."""
    lock = _thread.allocate_lock()
    lock.acquire()

    def run() -> None:
        try:
            _sync(descriptor, failures)
        finally:
            lock.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # there is none to be had, as when the interpreter ends
        run()
    return lock


def _sync(descriptor: int, failures: list[BaseException]) -> None:
    try:
        os.fsync(descriptor)
    except BaseException as error:  # noqa: BLE001  raised later, for who has asked
        failures.append(error)
