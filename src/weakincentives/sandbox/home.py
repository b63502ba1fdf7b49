"""The home of commands: a directory of their own, and an environment without secrets."""

import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weakincentives.filesystem.staging import remove_tree


class Home:
    """A temporary directory with a home and a place for temporary files in it."""

    def __init__(self) -> None:
        """Make it; it is removed by `remove`, or when nobody uses it any more."""
        self._place = Path(tempfile.mkdtemp(prefix="wink-sandbox-"))
        self.remove: Callable[[], object] = weakref.finalize(
            self, _remove, self._place, os.getpid()
        )
        for name in ("home", "tmp"):
            (self._place / name).mkdir(mode=0o700)

    def environment(self) -> dict[str, str]:
        """Return the variables that every command has."""
        return {
            "PATH": os.pathsep.join(os.get_exec_path()),
            "HOME": str(self._place / "home"),
            "TMPDIR": str(self._place / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }


def _remove(place: Path, maker: int) -> None:
    if os.getpid() != maker:
        return  # a fork of the process that it belongs to
    with suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with os.scandir(descriptor) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                _remove_entry(descriptor, name)
        finally:
            os.close(descriptor)
        place.rmdir()


def _remove_entry(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        remove_tree(directory, name)
