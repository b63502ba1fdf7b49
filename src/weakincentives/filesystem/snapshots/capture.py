"""Capture: what is in a directory of the host, as git objects.

A walk looks at every entry once and reads only the files that have changed since the
last one: a file whose device, inode, size and times are the same is the same file. A
file that changed so recently that it could change again unnoticed is read again.
Nothing in the workspace can influence what is captured.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from weakincentives.filesystem.hostfile import Identity, has_settled, identity_of
from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import join, os_error
from weakincentives.filesystem.rooted import RootedDirectory, read_range
from weakincentives.filesystem.store.batches import Batch
from weakincentives.filesystem.store.trees import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    TreeEntry,
    encode_tree,
)

_LARGE = 16 * 1024 * 1024  # read in pieces
_PIECE = 1024 * 1024
_ATTEMPTS = 10  # at reading a file that somebody is writing
_PLAIN_FILE = frozenset({0o644, 0o755})
_PLAIN_DIRECTORY = 0o755


class CapturedFile:
    """A file: its content by id, and what tells whether it has changed since."""

    __slots__ = ("id", "identity", "permissions", "settled", "size")

    def __init__(self, blob: str, found: os.stat_result) -> None:
        """Hold the id of the content that a file had when it was `found` so."""
        self.id = blob
        self.permissions = found.st_mode & 0o777
        self.size = found.st_size
        self.see(found)

    def see(self, found: os.stat_result) -> None:
        """Remember how the file looks; one that has just changed is not to be trusted."""
        self.identity: Identity = identity_of(found)
        self.settled = has_settled(self.identity)

    def looks_like(self, found: os.stat_result) -> bool:
        """Return whether a file found so is surely the same."""
        same = self.settled and self.identity == identity_of(found)
        return same and self.permissions == found.st_mode & 0o777


class CapturedLink(NamedTuple):
    """A symbolic link: its target as a blob."""

    id: str
    target: str


class CapturedDirectory:
    """A directory, and what a git tree cannot say of it and everything below.

    `modes` are permissions other than git's own, `specials` pipes, sockets and
    devices; both by the path below this directory.
    """

    __slots__ = ("children", "id", "modes", "permissions", "specials")

    def __init__(
        self, children: "dict[str, Captured]", permissions: int, specials: Sequence[str]
    ) -> None:
        """Hold `children` and the names of special files."""
        self.children = children
        self.permissions = permissions
        self.modes = dict(_odd_modes(children))
        self.specials = (*specials, *_specials_below(children))
        self.id = ""

    def is_same(self, other: "CapturedDirectory") -> bool:
        """Return whether nothing differs: the children are the same objects."""
        return (
            self.permissions == other.permissions
            and self.specials == other.specials
            and len(self.children) == len(other.children)
            and all(other.children.get(name) is child for name, child in self.children.items())
        )


Captured: TypeAlias = CapturedFile | CapturedLink | CapturedDirectory


def capture(
    directory: RootedDirectory, batch: Batch, prior: CapturedDirectory | None
) -> CapturedDirectory:
    """Return what is in `directory` now, with every new object added to `batch`.

    Where nothing has changed, the result is made of the objects of `prior`; if nothing
    has changed at all, it is `prior`.

    Raises:
        OSError: Something may not be read. A capture holds everything or is not made.
    """
    return _Capture(directory, batch).take(prior)


class _Listing(NamedTuple):
    """A directory as it was found, with what was known about it."""

    path: str
    prior: CapturedDirectory | None
    permissions: int
    files: list[tuple[str, os.stat_result]]
    directories: list[str]
    symlinks: list[tuple[str, str]]
    specials: tuple[str, ...]


class _Capture:
    def __init__(self, directory: RootedDirectory, batch: Batch) -> None:
        self._directory = directory
        self._batch = batch

    def take(self, prior: CapturedDirectory | None) -> CapturedDirectory:
        built: dict[str, CapturedDirectory] = {}
        # a directory is built after everything below it
        for listing in reversed(list(self._listings(prior))):
            built[listing.path] = self._built(listing, built)
        return built[""]

    def _listings(self, prior: CapturedDirectory | None) -> Iterator[_Listing]:
        pending: list[tuple[str, CapturedDirectory | None]] = [("", prior)]
        while pending:
            check_time("Snapshot")
            path, known = pending.pop()
            try:
                listing = self._listing(path, known)
            except FileNotFoundError:
                if not path:
                    raise
                continue  # removed since its parent was listed
            yield listing
            for name in listing.directories:
                child = known.children.get(name) if known is not None else None
                deeper = child if isinstance(child, CapturedDirectory) else None
                pending.append((join(path, name), deeper))

    def _listing(self, path: str, prior: CapturedDirectory | None) -> _Listing:
        descriptor = self._directory.open_directory(path)
        try:
            permissions = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
            listing = _Listing(path, prior, permissions, [], [], [], ())
            specials: list[str] = []
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if is_temporary(entry.name):
                        continue
                    try:
                        _sort_out(entry, descriptor, listing, specials)
                    except FileNotFoundError:
                        continue  # removed since it was listed
        finally:
            os.close(descriptor)
        return listing._replace(specials=tuple(sorted(specials)))

    def _built(self, listing: _Listing, built: dict[str, CapturedDirectory]) -> CapturedDirectory:
        prior = listing.prior
        known = {} if prior is None else prior.children
        children: dict[str, Captured] = {}
        for name, found in listing.files:
            file = self._file(listing.path, name, found, known.get(name))
            if file is not None:
                children[name] = file
        for name, target in listing.symlinks:
            children[name] = self._link(target, known.get(name))
        for name in listing.directories:
            child = built.pop(join(listing.path, name), None)
            if child is not None:
                children[name] = child
        node = CapturedDirectory(children, listing.permissions, listing.specials)
        if prior is not None and node.is_same(prior):
            return prior
        node.id = self._batch.add("tree", encode_tree(_tree_entries(children)))
        return node

    def _file(
        self, parent: str, name: str, found: os.stat_result, known: Captured | None
    ) -> CapturedFile | None:
        if isinstance(known, CapturedFile) and known.looks_like(found):
            return known
        try:
            return self._read(join(parent, name), known)
        except FileNotFoundError:
            return None  # removed since it was listed

    def _read(self, path: str, known: Captured | None) -> CapturedFile:
        for _ in range(_ATTEMPTS):
            descriptor, before = self._directory.open_file(path)
            try:
                blob = self._stored(descriptor, before.st_size)
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            if blob is None or identity_of(before) != identity_of(after):
                continue  # somebody is writing it
            if (
                isinstance(known, CapturedFile)
                and known.id == blob
                and known.permissions == after.st_mode & 0o777
            ):
                known.see(after)  # the same but for its times
                return known
            return CapturedFile(blob, after)
        raise os_error(errno.EBUSY, path, "Somebody writes the file without pause")

    def _stored(self, descriptor: int, size: int) -> str | None:
        """Add the content to the batch; None if it has another size by now."""
        if size <= _LARGE:
            data = read_range(descriptor, 0, size)
            return self._batch.add("blob", data) if len(data) == size else None
        try:
            return self._batch.add_blob(size, _pieces(descriptor, size))
        except ValueError:
            return None

    def _link(self, target: str, known: Captured | None) -> CapturedLink:
        if isinstance(known, CapturedLink) and known.target == target:
            return known
        return CapturedLink(self._batch.add("blob", os.fsencode(target)), target)


def git_mode(node: Captured) -> int:
    """Return the mode that a git tree gives to `node`."""
    if isinstance(node, CapturedDirectory):
        return DIRECTORY
    if isinstance(node, CapturedLink):
        return LINK
    return EXECUTABLE if node.permissions & 0o100 else FILE


def _sort_out(
    entry: "os.DirEntry[str]", directory: int, listing: _Listing, specials: list[str]
) -> None:
    if entry.is_file(follow_symlinks=False):
        listing.files.append((entry.name, entry.stat(follow_symlinks=False)))
    elif entry.is_dir(follow_symlinks=False):
        listing.directories.append(entry.name)
    elif entry.is_symlink():
        listing.symlinks.append((entry.name, os.readlink(entry.name, dir_fd=directory)))
    else:
        specials.append(entry.name)


def _tree_entries(children: dict[str, Captured]) -> Iterator[TreeEntry]:
    for name, child in children.items():
        yield TreeEntry(name, git_mode(child), child.id)


def _odd_modes(children: dict[str, Captured]) -> Iterator[tuple[str, int]]:
    for name, child in children.items():
        if isinstance(child, CapturedFile):
            if child.permissions not in _PLAIN_FILE:
                yield name, child.permissions
        elif isinstance(child, CapturedDirectory):
            if child.permissions != _PLAIN_DIRECTORY:
                yield name, child.permissions
            for path, mode in child.modes.items():
                yield f"{name}/{path}", mode


def _specials_below(children: dict[str, Captured]) -> Iterator[str]:
    for name, child in children.items():
        if isinstance(child, CapturedDirectory):
            for path in child.specials:
                yield f"{name}/{path}"


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _PIECE):
        check_time("Snapshot")
        yield read_range(descriptor, offset, min(_PIECE, size - offset))
