"""Mount points below a directory; a rename cannot cross from one file system to another."""

import os
import re
from pathlib import Path

from weakincentives.posix.paths import parents_of
from weakincentives.posix.rooted import RootedDirectory

_ESCAPED = re.compile(rb"\\([0-7]{3})")
_MOUNT_POINT = 4  # the field of a mountinfo line


class MountPoints:
    """The mount points below one directory."""

    def __init__(self, directory: RootedDirectory) -> None:
        """Read them; none if `directory` does not cross mounts."""
        self._points = frozenset(_read_points(directory) if directory.crosses_mounts else ())

    def filesystem_root(self, path: str) -> str:
        """Return the topmost directory of the file system that holds `path`."""
        if not self._points:
            return ""
        above = [parent for parent in parents_of(path) if parent in self._points]
        return above[-1] if above else ""

    def find_below(self, path: str) -> str | None:
        """Return the first mount point at or below `path`, which cannot be removed."""
        found = (each for each in self._points if f"{each}/".startswith(f"{path}/"))
        return min(found, default=None)


def _read_points(directory: RootedDirectory) -> list[str]:
    try:
        root = str(Path(f"/proc/self/fd/{directory.descriptor}").readlink()).rstrip("/")
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    points = [
        os.fsdecode(_ESCAPED.sub(_unescape, line.split(b" ")[_MOUNT_POINT])) for line in lines
    ]
    return [point[len(root) + 1 :] for point in points if point.startswith(f"{root}/")]


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])
