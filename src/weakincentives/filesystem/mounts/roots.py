"""The allow-list of host directories for mounts, confined against path traversal and TOCTOU races.

Each root is opened once, and everything below is reached through `RootedDirectory`: neither `..`
nor a link leads out, even if other processes rename directories meanwhile.
"""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weakincentives import posix
from weakincentives.filesystem.paths import InvalidPathError, PathEscapeError, normalize_path

HostRoots: TypeAlias = Sequence[str | os.PathLike[str]]


class Root:
    """An open allowed root."""

    def __init__(self, path: Path) -> None:
        """Open the directory; a link to it is resolved once, now."""
        self.path: Path = Path(os.path.realpath(path))
        self._given = Path(os.path.abspath(path))  # noqa: PTH100 # the spelling, links kept
        self.directory: posix.RootedDirectory = posix.RootedDirectory(path, cross_mounts=True)

    def relative(self, host_path: str) -> str | None:
        """Return the path relative to this root, or None if it leads elsewhere."""
        if not os.path.isabs(host_path):  # noqa: PTH117 # a question about the text
            try:
                return normalize_path(host_path)
            except PathEscapeError:
                return None
        plain = os.path.normpath(host_path)
        for base in (self.path, self._given):
            if Path(plain).is_relative_to(base):
                return normalize_path(str(Path(plain).relative_to(base)))
        return None

    def entries(self, path: str) -> "Generator[os.DirEntry[str], None, None]":
        """Yield the entries of a directory."""
        descriptor = self.directory.open_directory(path)
        with posix.OpenDescriptor(descriptor), os.scandir(descriptor) as entries:
            yield from entries


class RootedPath(NamedTuple):
    """A path below an allowed root, and the path that was requested."""

    root: Root
    path: str
    requested: str


class AllowedRoots(posix.CloseOnExit):
    """The open allowed roots; None allows the current directory."""

    def __init__(self, roots: HostRoots | None) -> None:
        """Open all `roots`."""
        if isinstance(roots, str | bytes | os.PathLike):
            raise TypeError(
                f"allowed_roots must be a sequence of paths, not a single path: {roots!r}"
            )
        self._roots: list[Root] = []
        with ExitStack() as stack:
            for path in ["."] if roots is None else roots:
                self._roots.append(Root(Path(path)))
                stack.callback(self._roots[-1].directory.close)
            self._exit_stack = stack.pop_all()

    def close(self) -> None:
        """Close the roots."""
        self._exit_stack.close()

    def find(self, host_path: str, *, follow: bool) -> RootedPath:
        """Find `host_path` below the first root that has it; links are followed only if `follow`.

        Raises:
            PathEscapeError: The path is not below a root, or a link leads out.
            FileNotFoundError: The path exists below no root.
            PermissionError: It cannot be reached, or leads through a link.
        """
        if not host_path:
            raise InvalidPathError("Host path is empty; use '.' for the root")
        below = [
            (root, path) for root in self._roots if (path := root.relative(host_path)) is not None
        ]
        if not below:
            raise PathEscapeError(
                f"Host path escapes root: {host_path!r} is not below an allowed root"
            )
        errors: list[OSError] = []
        for root, path in below:
            try:
                return self._locate(root, path, follow=follow)
            except OSError as error:
                errors.append(error)
        errors.sort(key=lambda error: isinstance(error, FileNotFoundError))
        raise errors[0]

    def resolve_link(self, link: Path) -> tuple[Root, str] | None:
        """Resolve a link; return its target, or None if that is not below a root.

        Raises:
            FileNotFoundError: The target is below a root and does not exist.
        """
        try:
            real = os.path.realpath(link)
        except OSError:
            raise posix.os_error(errno.ENOENT, str(link)) from None  # it was replaced just now
        for root in self._roots:
            path = root.relative(real)
            if path is not None:
                root.directory.lstat(path)
                return root, path
        return None

    def _locate(self, root: Root, path: str, *, follow: bool) -> RootedPath:
        try:
            if not follow:
                root.directory.lstat(path)
                return RootedPath(root, path, path)
            found = self.resolve_link(root.path / path)
        except (FileNotFoundError, NotADirectoryError):
            raise _unreachable_error(root, path) from None
        except OSError as error:
            raise posix.explain_error(error, path) from None
        if found is None:
            raise PathEscapeError(
                f"Host path escapes root: {path!r} leads out of the allowed roots"
            )
        return RootedPath(*found, path)


def _unreachable_error(root: Root, path: str) -> OSError:
    """Return why `path` was not found: a link above it, or no such entry."""
    for parent in posix.parents_of(path):
        with suppress(OSError):
            if root.directory.lstat(parent)[1] is not None:
                text = "Host path leads through a symbolic link, which this mount does not follow"
                return posix.os_error(errno.EPERM, path, text)
    return posix.os_error(errno.ENOENT, path, "Host path does not exist")
