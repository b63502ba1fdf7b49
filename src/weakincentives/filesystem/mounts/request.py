"""What is asked for: a folder or file of the host, where it goes, and what of it is wanted."""

from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.filesystem.paths import (
    RESERVED_PREFIX,
    InvalidPathError,
    VfsPath,
    normalize_path,
)
from weakincentives.filesystem.patterns import compile_filter


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder or file of the host to copy into the workspace.

    Args:
        host_path: Relative to an allowed root, or absolute and below one.
        mount_path: Where it goes; by default the path relative to the allowed root.
        include_glob: Keep only files that match one of these; without `/` by name.
        exclude_glob: Leave out files that match one of these.
        max_bytes: Refuse the mount if its files are larger together.
        follow_symlinks: Copy what links point to, as long as it is below an allowed
            root; otherwise links are skipped.
        max_file_bytes: Skip files that are larger than this.
    """

    host_path: str
    mount_path: VfsPath | str | None = None
    include_glob: tuple[str, ...] = ()
    exclude_glob: tuple[str, ...] = ()
    max_bytes: int | None = None
    follow_symlinks: bool = False
    max_file_bytes: int | None = None


class MountFilter:
    """What the globs of a mount want; false while there are none.

    A glob that ends in `/` stands for everything below.
    """

    def __init__(self, mount: HostMount) -> None:
        """Compile the globs of `mount`."""
        include = _patterns(mount.include_glob)
        exclude = _patterns(mount.exclude_glob)
        self._include = [compile_filter(pattern) for pattern in include]
        self._exclude = [compile_filter(pattern) for pattern in exclude]
        # `a/**/` matches the directory `a` and every directory below it
        self._pruned = [
            compile_filter(pattern + "/")
            for pattern in exclude
            if pattern.endswith("/**") and "\\" not in pattern
        ]

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self._include or self._exclude)

    def wants(self, path: str) -> bool:
        """Return whether a file at `path` below the mount is to be copied."""
        included = not self._include or any(matches(path) for matches in self._include)
        return included and not any(matches(path) for matches in self._exclude)

    def prunes(self, directory: str) -> bool:
        """Return whether everything below a directory is left out, so that nobody need look."""
        return any(matches(directory + "/") for matches in self._pruned)


def mount_target(mount: HostMount, default: str) -> str:
    """Return where a mount goes, in normal form; to `default` if it does not say.

    Raises:
        InvalidPathError: The path is reserved, or no path.
        PathEscapeError: The path climbs out with `..`.
    """
    normal = default if mount.mount_path is None else normalize_path(str(mount.mount_path))
    if any(segment.startswith(RESERVED_PREFIX) for segment in normal.split("/")):
        raise InvalidPathError(f"Mount path is reserved: {normal!r}")
    return normal


def _patterns(given: Sequence[str]) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"A mount's globs must be a sequence of patterns, not one: {given!r}")
    return [pattern + "**" if pattern.endswith("/") else pattern for pattern in given]
