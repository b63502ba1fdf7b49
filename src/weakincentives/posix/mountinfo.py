"""Other file systems that are mounted below a directory: no rename leads from one to another."""

import os
import re
from pathlib import Path

from weakincentives.posix.paths import parents_of
from weakincentives.posix.rooted import RootedDirectory

_ESCAPED = re.compile(rb"\\([0-7]{3})")
_POINT = 4  # the field of a line that says where something is mounted


class MountPoints:
    """The places below one directory at which something is mounted."""

    def __init__(self, directory: RootedDirectory) -> None:
        """Look where they are; there are none for who does not enter them."""
        self._points = frozenset(_below(directory) if directory.crosses_mounts else ())

    def filesystem_root(self, path: str) -> str:
        """Return the topmost directory of the file system that holds what is at `path`."""
        if not self._points:
            return ""
        above = [parent for parent in parents_of(path) if parent in self._points]
        return above[-1] if above else ""

    def find_below(self, path: str) -> str | None:
        """Return the first place at or below `path` that nobody can remove or replace."""
        found = (each for each in self._points if f"{each}/".startswith(f"{path}/"))
        return min(found, default=None)


def _below(directory: RootedDirectory) -> list[str]:
    try:
        root = str(Path(f"/proc/self/fd/{directory.descriptor}").readlink()).rstrip("/")
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    points = [os.fsdecode(_ESCAPED.sub(_byte, line.split(b" ")[_POINT])) for line in lines]
    return [point[len(root) + 1 :] for point in points if point.startswith(f"{root}/")]


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])
