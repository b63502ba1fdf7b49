"""The `/etc` of a sandbox: small files copied once, large directories to be mounted.

Each mount costs every command time, since bubblewrap looks at all mounts for each one. So a
sandbox copies the small files and directories when it starts, and commands mount one directory.
Only what everybody on this machine can read is copied; a command sees it as it was then.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from weakincentives.sandbox.system_paths import ETC_FILES, can_read, is_below

_ETC = "/etc"
_MAX_ENTRIES = 64  # of a directory that is copied; a mount is cheaper than more of them
_MAX_BYTES = 512 * 1024


class EtcDirectory:
    """A directory that commands get as `/etc`, and the paths to mount on it."""

    def __init__(self, directory: Path, texts: Mapping[str, str], source: str = _ETC) -> None:
        """Fill an empty directory with the files of `system_paths.ETC_FILES`.

        Args:
            directory: Where the files are copied to.
            texts: Files that the sandbox has instead of those of the host, by name.
            source: The directory to copy from.
        """
        self.path: str = str(directory)
        self.mounts: list[str] = []
        self._directory = directory
        for name, text in texts.items():
            (directory / name).write_text(text)
        for name in ETC_FILES:
            path = f"{source}/{name}"
            if can_read(path) and not _copy(path, f"{directory}/{name}"):
                self.mounts.append(path)
                self._create(directory / name, is_directory=Path(path).is_dir())

    def add_mount_point(self, path: str) -> None:
        """Make sure that a path of the host can be mounted, if it is in `/etc`."""
        if is_below(path, (_ETC,)):
            target = self._directory / os.path.relpath(path, _ETC)
            self._create(target, is_directory=Path(path).is_dir())

    def _create(self, target: Path, *, is_directory: bool) -> None:
        with suppress(OSError):  # bubblewrap says why a path cannot be mounted
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir(exist_ok=True) if is_directory else target.touch()


def _copy(source: str, target: str) -> bool:
    """Copy a file or directory if it is small and public; return whether it was."""
    try:
        found = list(_entries(source))
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 # as below
        for path, mode in found:
            _copy_entry(path, target + path[len(source) :], mode)
    except (OSError, _NotCopiedError):
        return False
    return True


def _copy_entry(path: str, target: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211 # as below
    elif stat.S_ISDIR(mode):
        os.mkdir(target)  # noqa: PTH102 # as below
    else:
        with open(path, "rb", 0) as file, open(target, "xb", 0) as copy:  # noqa: PTH123 # as below
            copy.write(file.read())
            os.fchmod(copy.fileno(), stat.S_IMODE(mode) & 0o777)


def _entries(source: str) -> Iterator[tuple[str, int]]:
    """Yield a path and all below it with their modes; links count only below it."""
    # a hundred entries are looked at for each sandbox, which takes twice as long with pathlib
    pending, count, size = [(source, os.stat(source))], 0, 0  # noqa: PTH116 # as above
    while pending:
        path, status = pending.pop()
        mode, count = status.st_mode, count + 1
        is_link, is_directory = stat.S_ISLNK(mode), stat.S_ISDIR(mode)
        size += status.st_size
        is_public = is_link or bool(mode & stat.S_IROTH)
        is_known = is_link or is_directory or stat.S_ISREG(mode)
        if not (is_public and is_known) or count > _MAX_ENTRIES or size > _MAX_BYTES:
            raise _NotCopiedError(path)
        yield path, mode
        if is_directory:
            with os.scandir(path) as entries:
                pending += [(each.path, each.stat(follow_symlinks=False)) for each in entries]


class _NotCopiedError(Exception):
    """A path is too large, or not for everybody to read."""
