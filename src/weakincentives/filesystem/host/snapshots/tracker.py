"""Change tracking between snapshots: touched paths, and a stat cache on disk.

The index in the repository keeps the last capture for the next process, so that its first
walk reads only changed files. It is a cache: an index that is damaged, belongs to another
workspace or predates the last garbage collection is ignored.
"""

import hashlib
import logging
import os
import struct
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import msgspec

from weakincentives.filesystem.host.files import identity_of
from weakincentives.filesystem.host.snapshots.capture import capture
from weakincentives.filesystem.host.snapshots.edits import store_commit_tree
from weakincentives.filesystem.host.snapshots.nodes import Captured, CapturedDirectory, CapturedFile
from weakincentives.filesystem.host.snapshots.watcher import ChangeWatcher
from weakincentives.filesystem.host.snapshots.writer import WrittenTree
from weakincentives.filesystem.manifest import SnapshotManifest
from weakincentives.gitstore import ID_BYTES, PackTransaction, Repository
from weakincentives.posix import PACK_CODEC, AtomicFile, RootedDirectory, fault_point, read_regular

_INDEX_NAME = "wink-index"
_MAGIC = b"wink-index 3\n"
_DIGEST_SIZE = 20
_SIZE = struct.Struct(">I")
_MAX_BYTES = 256 * 1024 * 1024
_log = logging.getLogger(__name__)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A directory; a child directory is given as the number of its row."""

    entry: bytes
    permissions: int
    specials: bytes
    names: bytes
    children: list[CapturedFile | int]


class _StoredIndex(msgspec.Struct, array_like=True):
    root: bytes
    epoch: str
    rows: list[_Row]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_StoredIndex)


def load_index(path: Path, *, root: str, epoch: str | None) -> CapturedDirectory | None:
    """Return the last capture, or None if there is no usable index.

    Everything may have changed since; use it only as the prior of a walk. Without an `epoch`,
    its objects may be gone.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_SIZE
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(data[start:]):
        return None
    try:
        index = _decoder.decode(_decompress(data[start:]))
        if index.root != os.fsencode(root) or epoch not in (None, index.epoch):
            return None
        return _decode_rows(index.rows)
    except (msgspec.MsgspecError, struct.error, ValueError, KeyError) as error:
        _log.warning("Cannot read the index %r: %s", str(path), error)
        return None


def save_index(path: Path, captured: CapturedDirectory, *, root: str, epoch: str) -> None:
    """Replace the index with a capture whose objects are stored.

    It is not synced; if it cannot be written, the old index stays.
    """
    data = _encoder.encode(_StoredIndex(os.fsencode(root), epoch, _encode_rows(captured)))
    if len(data) > _MAX_BYTES:
        return
    packed = _SIZE.pack(len(data)) + PACK_CODEC.deflate(data)
    try:
        with AtomicFile(path.parent, _MAGIC + _digest(packed) + packed) as file:
            fault_point("index.written")
            file.name(path)
    except OSError as error:
        _log.warning("Cannot write the index %r: %s", str(path), error)


def _decompress(packed: bytes) -> bytes:
    (size,) = _SIZE.unpack_from(packed)
    data = (
        PACK_CODEC.inflate(memoryview(packed)[_SIZE.size :], size) if size <= _MAX_BYTES else None
    )
    if data is None:
        raise ValueError("It does not have the size that it says")
    return data


def count_changes(before: CapturedDirectory | None, after: CapturedDirectory) -> int:
    """Count the files and links in `after` that are new or differ from `before`."""
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


def _encode_rows(captured: CapturedDirectory) -> list[_Row]:
    directories = [captured]
    rows: list[_Row] = []
    for directory in directories:  # grows while it is iterated
        children: list[CapturedFile | int] = []
        for child in directory.children.values():
            if isinstance(child, CapturedDirectory):
                children.append(len(directories))
                directories.append(child)
            else:
                children.append(child)
        names, specials = _join_names(directory.children), _join_names(directory.special_names)
        rows.append(_Row(directory.entry, directory.permissions, specials, names, children))
    return rows


def _decode_rows(rows: list[_Row]) -> CapturedDirectory:
    directories: dict[int, CapturedDirectory] = {}
    for number in reversed(range(len(rows))):  # parents come before their children
        row = rows[number]
        children: dict[str, Captured] = {
            name: directories.pop(child) if isinstance(child, int) else child
            for name, child in zip(_split_names(row.names), row.children, strict=True)
        }
        specials = frozenset(_split_names(row.specials))
        directories[number] = CapturedDirectory(row.entry, children, row.permissions, specials)
    return directories[0]


def _join_names(names: Iterable[str]) -> bytes:
    return os.fsencode("/".join(names))


def _split_names(names: bytes) -> list[str]:
    return os.fsdecode(names).split("/") if names else []


def _digest(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """A capture, to be accepted once its objects are stored."""

    directory: CapturedDirectory
    tree: str
    manifest: str
    epoch: str
    losses: int
    touched: frozenset[str]
    invalidations: int
    is_watched: bool


class ChangeTracker:
    """Knows which paths of one directory may have changed since the last capture.

    With `exclusive`, no other program changes the directory without a call of `invalidate` or
    `changed_by_others`. What a confined program changes is found by a watcher, if it can be; the
    watcher starts with the first such program.
    """

    def __init__(self, directory: RootedDirectory, *, exclusive: bool) -> None:
        """Start without a capture."""
        self._directory = directory
        self._exclusive = exclusive
        self._last: CaptureResult | None = None  # that was accepted
        self._earlier: CapturedDirectory | None = None  # of another process, until there is a last
        self._touched: set[str] = set()
        self._uncaptured: set[str] = set()  # touched before a capture that was not accepted yet
        self._saved: CapturedDirectory | None = None
        self._invalidations = 0
        self._watch_lock = RLock()
        self._watcher: ChangeWatcher | None = None
        self._can_watch = exclusive
        self._is_watched = False  # whether a walk has added all watches while no program ran
        self.reported_programs: int = 0
        """How many confined programs have run, or run now."""
        self._running = 0  # programs that may change files at any time
        self._started = 0

    @property
    def tree(self) -> str:
        """The tree of the commit of the last capture."""
        return "" if self._last is None else self._last.tree

    def touch(self, *paths: str) -> None:
        """Note that `paths` are about to change."""
        if self._exclusive:
            self._touched.update(paths)

    def invalidate(self) -> None:
        """Note that anything may have changed."""
        self._invalidations += 1

    @contextmanager
    def changed_by_others(self, *, confined: bool) -> Generator[None, None, None]:
        """Trust nothing during the block: another program changes the directory.

        If it is `confined`, it reaches files only by paths below the directory, and no process
        of it is left after the block unless that raises.
        """
        self._begin_changes(confined=confined)
        is_gone = False
        try:
            yield
            is_gone = True
        finally:
            self._end_changes(is_reported=is_gone and confined)

    def forget(self) -> None:
        """Drop the last capture."""
        self._last = self._earlier = None

    def close(self) -> None:
        """Stop watching."""
        with self._watch_lock:
            self._stop_watching()

    def is_unchanged(self, repository: Repository) -> bool:
        """Return whether everything is as in the last capture, known without a look."""
        repository.objects.refresh(closely=True)
        with self._watch_lock:
            if not self._running:
                self._collect()
            is_touched = self._running or self._touched or self._uncaptured
        last = self._last
        is_known = last is not None and (
            (last.losses, last.invalidations) == (repository.objects.losses, self._invalidations)
        )
        return self._exclusive and is_known and not is_touched

    def capture(
        self, repository: Repository, batch: PackTransaction, written: WrittenTree | None = None
    ) -> CaptureResult:
        """Capture the directory; new objects are added to `batch`, which has just begun.

        What was just `written` is not looked at; the objects of that capture are in `batch`.
        """
        epoch, losses = repository.epoch(), repository.objects.losses
        last = self._last
        if last is not None and (epoch, losses) != (last.epoch, last.losses):
            last = None  # after another garbage collection or loss, stored objects may be gone
        prior = self._find_prior(repository, last, written)
        with self._watch_lock:
            if not self._running:
                self._collect()
            started, running, watcher = self._started, self._running, self._own_watcher()
            # apart from what is touched from now on, which this capture may not see
            self._uncaptured |= self._touched
            self._touched = set()
        touched, invalidations = frozenset(self._uncaptured), self._invalidations
        is_complete = last is not None and last.invalidations == invalidations
        # what a running program stores into memory mappings is not reported yet
        trusted = self._exclusive and is_complete and not running
        scope = touched if trusted else None
        if last is None and written is not None:
            scope = written.missed
        found = self._capture(batch, prior, scope, watcher)
        is_alone = not running and started == self._started
        if is_alone and watcher is not None:
            watcher.forget_new(touched if trusted else None)
        is_watched = is_alone and watcher is not None and not trusted
        manifest = _add_manifest(batch, found, last)
        is_same = last is not None and found is last.directory
        tree = self.tree if is_same else store_commit_tree(batch.add, found.id, manifest)
        return CaptureResult(
            found, tree, manifest, epoch, losses, touched, invalidations, is_watched
        )

    def accept(self, result: CaptureResult) -> None:
        """Make `result` the last capture; its objects must be stored."""
        self._last, self._earlier = result, None
        self._uncaptured -= result.touched
        if result.is_watched and result.invalidations == self._invalidations:
            self._is_watched = True

    def save_index(self, repository: Repository, *, min_changes: int = 1) -> None:
        """Write the index for the next process, unless too few files have changed."""
        last = None if self._last is None else self._last.directory
        if last is not None and count_changes(self._saved, last) >= min_changes:
            path = repository.git_dir / _INDEX_NAME
            save_index(path, last, root=repository.root, epoch=repository.epoch())
            self._saved = last

    def load_ids(self, git_dir: Path, *, root: str) -> None:
        """Let `blob_id` use the index of an earlier process, unless there is a capture."""
        if self._last is None:
            self._earlier = load_index(git_dir / _INDEX_NAME, root=root, epoch=None)

    def blob_id(self, path: str) -> str | None:
        """Return the git blob id of a file, if its stat is still that of the last capture.

        The object need not be stored: it may be a capture of an earlier process.
        """
        node: Captured | None = self._earlier if self._last is None else self._last.directory
        for segment in path.split("/"):
            if not isinstance(node, CapturedDirectory):
                return None
            node = node.children.get(segment)
        if not isinstance(node, CapturedFile) or node.is_link:
            return None
        try:
            found, _ = self._directory.lstat(path)
        except OSError:
            return None
        return node.id if node.identity == identity_of(found) else None

    def _capture(
        self,
        batch: PackTransaction,
        prior: CapturedDirectory | None,
        touched: frozenset[str] | None,
        watcher: ChangeWatcher | None,
    ) -> CapturedDirectory:
        if watcher is None:
            return capture(self._directory, batch, prior, touched)
        if touched is not None:
            links = watcher.new_links
            found = capture(self._directory, batch, prior, touched, watcher)
            if watcher.new_links == links:
                return found
            # a file may have been changed by a name that was not known to belong to it
        watcher.begin_walk()
        found = capture(self._directory, batch, prior, None, watcher)
        if watcher.is_exhausted:
            with self._watch_lock:
                self._stop_watching()
        return found

    def _begin_changes(self, *, confined: bool) -> None:
        with self._watch_lock:
            if confined and self._can_watch and self._watcher is None:
                try:
                    self._watcher = ChangeWatcher(self._directory)
                except OSError:
                    self._can_watch = False
            self._collect()
            self.reported_programs += confined
            self._running += 1
            self._started += 1
            if self._watcher is None or not self._watcher.is_complete:
                self._is_watched = False

    def _end_changes(self, *, is_reported: bool) -> None:
        with self._watch_lock:
            self._collect()
            self._running -= 1
            self._is_watched = self._is_watched and is_reported
            if not self._is_watched:
                self.invalidate()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._watcher, self._can_watch, self._is_watched = None, False, False

    def _own_watcher(self) -> ChangeWatcher | None:
        """Return the watcher, unless it belongs to the process that this one was forked from."""
        watcher = self._watcher
        return None if watcher is None or watcher.is_shared else watcher

    def _collect(self) -> None:
        """Touch what was reported; without a complete report, invalidate."""
        watcher = self._own_watcher()
        found = None if watcher is None else watcher.collect(by_command=self._running > 0)
        if found is not None:
            self._touched |= found
            return
        self._is_watched = False
        if watcher is not None:
            self.invalidate()

    def _find_prior(
        self, repository: Repository, last: CaptureResult | None, written: WrittenTree | None
    ) -> CapturedDirectory | None:
        """Return the state to compare with: what is the same in it is not read again."""
        if last is not None:
            return last.directory
        if written is not None:
            return written.captured
        if self._last is not None:
            return None
        # the capture of an earlier process, if all its objects are still stored
        path = repository.git_dir / _INDEX_NAME
        found = load_index(path, root=repository.root, epoch=repository.epoch())
        if found is None or not repository.objects.has_all(_object_keys(found)):
            return None
        self._saved = found
        return found


def _add_manifest(
    batch: PackTransaction, found: CapturedDirectory, last: CaptureResult | None
) -> str:
    """Return the manifest of a state, which is the last one if its notes are the same."""
    if last is not None and found.notes == last.directory.notes:
        return last.manifest
    return batch.add("blob", SnapshotManifest(found.modes, found.specials).encode())


def _object_keys(captured: CapturedDirectory) -> Iterator[bytes]:
    """Yield the binary id of every object of a capture."""
    yield captured.entry
    for directory in captured.directories():
        yield from (child.entry[-ID_BYTES:] for child in directory.children.values())
