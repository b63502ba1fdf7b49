"""The allow-list: the directories of the host below which everything may be mounted.

Each is opened once and everything below it is reached through `rooted`, so neither
`..` nor a link leads out, whatever others rename meanwhile.
"""

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from weakincentives.filesystem.paths import InvalidPathError, PathEscapeError, normalize_path
from weakincentives.posix import RootedDirectory, explain_error, os_error, parents_of

HostRoots: TypeAlias = Sequence[str | os.PathLike[str]]


class Root:
    """An allowed root, open."""

    def __init__(self, path: Path) -> None:
        """Open it; a link to it is resolved once, now."""
        self.path: Path = Path(os.path.realpath(path))
        self._given = Path(os.path.abspath(path))  # noqa: PTH100 # the spelling, links kept
        self.directory: RootedDirectory = RootedDirectory(path, cross_mounts=True)

    def relative(self, host_path: str) -> str | None:
        """Return the path below this root, or None if it leads elsewhere."""
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
        """Yield what is in a directory."""
        descriptor = self.directory.open_directory(path)
        try:
            with os.scandir(descriptor) as entries:
                yield from entries
        finally:
            os.close(descriptor)


class RootedPath(NamedTuple):
    """Something below an allowed root: where it is, and the path that was asked for."""

    root: Root
    path: str
    asked: str


class AllowedRoots:
    """The allowed roots, open until they are closed; None allows the current directory."""

    def __init__(self, roots: HostRoots | None) -> None:
        """Open every one of `roots`."""
        if isinstance(roots, str | bytes | os.PathLike):
            raise TypeError(f"allowed_roots must be a sequence of paths, not one: {roots!r}")
        self._roots: list[Root] = []
        with ExitStack() as closing:
            for path in ["."] if roots is None else roots:
                self._roots.append(Root(Path(path)))
                closing.callback(self._roots[-1].directory.close)
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the roots."""
        self._closing.close()

    def find(self, host_path: str, *, follow: bool) -> RootedPath:
        """Return the first root that has `host_path`; links on the way only if `follow`.

        Raises:
            PathEscapeError: The path is below no root, or a link leads out.
            FileNotFoundError: No root has it.
            PermissionError: It cannot be reached, or a link is not followed.
        """
        if not host_path:
            raise InvalidPathError("A mount needs a host path, not an empty one; '.' is the root")
        below = [
            (root, path) for root in self._roots if (path := root.relative(host_path)) is not None
        ]
        if not below:
            raise PathEscapeError(f"Host path escapes root: {host_path!r} is below no allowed root")
        refusals: list[OSError] = []
        for root, path in below:
            try:
                return self._found(root, path, follow=follow)
            except OSError as error:
                refusals.append(error)
        refusals.sort(key=lambda error: isinstance(error, FileNotFoundError))
        raise refusals[0]

    def behind(self, link: Path) -> tuple[Root, str] | None:
        """Return what is at the end of a link, or None if that is below no root.

        Raises:
            FileNotFoundError: It ends below a root, where nothing is.
        """
        try:
            real = os.path.realpath(link)
        except OSError:
            raise os_error(errno.ENOENT, str(link)) from None  # it has just been replaced
        for root in self._roots:
            path = root.relative(real)
            if path is not None:
                root.directory.lstat(path)
                return root, path
        return None

    def _found(self, root: Root, path: str, *, follow: bool) -> RootedPath:
        try:
            if not follow:
                root.directory.lstat(path)
                return RootedPath(root, path, path)
            found = self.behind(root.path / path)
        except (FileNotFoundError, NotADirectoryError):
            raise _unreachable(root, path) from None
        except OSError as error:
            raise explain_error(error, path) from None
        if found is None:
            raise PathEscapeError(f"Host path escapes root: {path!r} leads to no allowed root")
        return RootedPath(*found, path)


def _unreachable(root: Root, path: str) -> OSError:
    """Return why nothing can be reached at `path`: a link on the way, or nothing there."""
    for parent in parents_of(path):
        with suppress(OSError):
            if root.directory.lstat(parent)[1] is not None:
                text = "Host path leads through a symbolic link, which this mount does not follow"
                return os_error(errno.EPERM, path, text)
    return os_error(errno.ENOENT, path, "Host path does not exist")
