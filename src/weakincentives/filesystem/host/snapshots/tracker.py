"""The index: what the last capture saw, kept in the store for the next process.

With it, a walk reads only what has changed since, although it is the first one. It is no
more than a memory: one that is damaged, of another workspace, or older than the last
removal of objects is not used, and one that is not there costs nothing but time.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weakincentives.filesystem.host.files import identity_of
from weakincentives.filesystem.host.snapshots.capture import capture
from weakincentives.filesystem.host.snapshots.partial import store_tree
from weakincentives.filesystem.host.snapshots.tree import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    CapturedLink,
)
from weakincentives.filesystem.manifest import SnapshotManifest
from weakincentives.gitstore import PackTransaction, Repository
from weakincentives.posix import AtomicFile, RootedDirectory, fault_point, read_regular

_MAGIC = b"wink-index 1\n"
_DIGEST = 20
_MAX_BYTES = 256 * 1024 * 1024
_log = logging.getLogger(__name__)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A directory; a child is a number if it is the directory in that row."""

    entry: bytes
    permissions: int
    specials: bytes
    names: bytes
    children: list[CapturedFile | CapturedLink | int]


class _Index(msgspec.Struct, array_like=True):
    root: bytes
    epoch: str
    rows: list[_Row]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Index)


def load_index(path: Path, *, root: str, epoch: str) -> CapturedDirectory | None:
    """Return what was captured last, or None if that is not known.

    Everything may have changed since: it is the prior of a walk, and says nothing about
    what is there now.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(data[start:]):
        return None
    try:
        index = _decoder.decode(memoryview(data)[start:])
        if index.root != os.fsencode(root) or index.epoch != epoch:
            return None
        return _built(index.rows)
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        _log.warning("Index cannot be read: %r: %s", str(path), error)
        return None


def save_index(path: Path, captured: CapturedDirectory, *, root: str, epoch: str) -> None:
    """Keep what was captured and is stored, in place of what was kept before.

    It is not brought to the disk; if it cannot be written, the old one stays.
    """
    data = _encoder.encode(_Index(os.fsencode(root), epoch, _rows(captured)))
    if len(data) > _MAX_BYTES:
        return
    try:
        with AtomicFile(path.parent, _MAGIC + _digest(data) + data) as file:
            fault_point("index.written")
            file.name(path)
    except OSError as error:
        _log.warning("Index cannot be kept: %r: %s", str(path), error)


def changed_files(before: CapturedDirectory | None, after: CapturedDirectory) -> int:
    """Return how many files and links there are that were not there, or were others, before."""
    count = 0
    pending = [(before, after)]
    while pending:
        old, new = pending.pop()
        known = {} if old is None else old.children
        for name, child in new.children.items():
            other = known.get(name)
            if child is other:
                continue
            if isinstance(child, CapturedDirectory):
                pending.append((other if isinstance(other, CapturedDirectory) else None, child))
            else:
                count += 1
    return count


def _rows(captured: CapturedDirectory) -> list[_Row]:
    directories = [captured]
    rows: list[_Row] = []
    for directory in directories:  # which becomes longer meanwhile
        children: list[CapturedFile | CapturedLink | int] = []
        for child in directory.children.values():
            if isinstance(child, CapturedDirectory):
                children.append(len(directories))
                directories.append(child)
            else:
                children.append(child)
        names, specials = _joined(directory.children), _joined(directory.here)
        rows.append(_Row(directory.entry, directory.permissions, specials, names, children))
    return rows


def _built(rows: list[_Row]) -> CapturedDirectory:
    built: dict[int, CapturedDirectory] = {}
    for number in reversed(range(len(rows))):  # a directory comes before those in it
        row = rows[number]
        children: dict[str, Captured] = {
            name: built.pop(child) if isinstance(child, int) else child
            for name, child in zip(_split(row.names), row.children, strict=True)
        }
        specials = frozenset(_split(row.specials))
        built[number] = CapturedDirectory(row.entry, children, row.permissions, specials)
    return built[0]


def _joined(names: Iterable[str]) -> bytes:
    return os.fsencode("/".join(names))


def _split(names: bytes) -> list[str]:
    return os.fsdecode(names).split("/") if names else []


def _digest(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


_INDEX = "wink-index"


class ChangeTracker:
    """One directory; `exclusive` if nobody changes it without telling."""

    def __init__(self, directory: RootedDirectory, *, exclusive: bool) -> None:
        """Know nothing yet."""
        self._directory = directory
        self._exclusive = exclusive
        self._known: CapturedDirectory | None = None
        self._tree = ""
        self._manifest = ""
        self._epoch = ""
        self._touched: set[str] = set()
        self._saved: CapturedDirectory | None = None
        self._outside = 0  # how often somebody else may have changed something
        self._looked = 0  # how often of these we have looked

    @property
    def known(self) -> CapturedDirectory:
        """What was captured last."""
        if self._known is None:
            raise RuntimeError("Nothing has been captured yet")
        return self._known

    def touch(self, *paths: str) -> None:
        """Take note that what is at `paths` changes."""
        if self._exclusive:
            self._touched.update(paths)

    def invalidate(self) -> None:
        """Take note that anything may have changed."""
        self._outside += 1

    def forget(self) -> None:
        """Know nothing any more."""
        self._known = None

    def look(self, repository: Repository, batch: PackTransaction) -> "CaptureResult":
        """Capture the directory, with every new object in `batch`."""
        repository.objects.refresh(closely=True)
        epoch = f"{repository.epoch()} {repository.objects.losses}"
        # what was stored may have been removed since
        known = self._known if epoch == self._epoch else None
        prior = known or self._remembered(repository)
        touched, outside = frozenset(self._touched), self._outside
        trusted = self._exclusive and self._looked == outside and known is not None
        found = capture(self._directory, batch, prior, touched if trusted else None)
        tree = self._tree
        manifest = self._manifest
        if known is None or found.notes != known.notes:
            manifest = batch.add("blob", SnapshotManifest(found.modes, found.specials).encode())
        if found is not known:
            tree = store_tree(batch, found.id, manifest)
        return CaptureResult(self, found, tree, manifest, epoch, touched, outside)

    def save(self, repository: Repository, *, least: int = 1) -> None:
        """Keep what is known for the next process, if at least so many files are new."""
        known = self._known
        if known is not None and changed_files(self._saved, known) >= least:
            path = repository.git_dir / _INDEX
            save_index(path, known, root=repository.root, epoch=repository.epoch())
            self._saved = known

    def _remembered(self, repository: Repository) -> CapturedDirectory | None:
        """Return what an earlier process has seen, if all of it is still stored."""
        if self._known is not None:
            return None
        path = repository.git_dir / _INDEX
        found = load_index(path, root=repository.root, epoch=repository.epoch())
        if found is None or not all(map(repository.objects.is_packed, _ids(found))):
            return None
        self._saved = found
        return found

    def learn(self, look: "CaptureResult") -> None:
        """Rely on a capture from now on: its objects are stored."""
        self._known, self._tree, self._epoch = look.found, look.tree, look.epoch
        self._manifest = look.manifest
        self._touched -= look.touched
        self._looked = look.outside

    def blob_id(self, path: str) -> str | None:
        """Return git's id of a file's content, if the file is surely as it was captured."""
        node: Captured | None = self._known
        for segment in path.split("/"):
            if not isinstance(node, CapturedDirectory):
                return None
            node = node.children.get(segment)
        if not isinstance(node, CapturedFile):
            return None
        try:
            found, _ = self._directory.lstat(path)
        except OSError:
            return None
        return node.id if node.identity == identity_of(found) else None


def _ids(captured: CapturedDirectory) -> Iterator[str]:
    """Yield the id of every object that is part of a capture."""
    pending: list[CapturedDirectory] = [captured]
    while pending:
        directory = pending.pop()
        yield directory.id
        for child in directory.children.values():
            if isinstance(child, CapturedDirectory):
                pending.append(child)
            else:
                yield child.id


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What a capture found; it is relied on once `remember` is called."""

    watch: ChangeTracker
    found: CapturedDirectory
    tree: str
    manifest: str
    epoch: str
    touched: frozenset[str]
    outside: int

    def remember(self) -> None:
        """Say that everything that was found has been stored."""
        self.watch.learn(self)
