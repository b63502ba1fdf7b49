"""Snapshot commits of one workspace: captured, imported, merged and read back.

A full disk must not prevent a restore: `UnstoredObjects` then holds the present state in
memory, just enough of it to plan the restore.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.host.snapshots.edits import is_same, put_entries
from weakincentives.filesystem.host.snapshots.tracker import ChangeTracker
from weakincentives.filesystem.host.snapshots.tree import import_tree
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.writer import TreeWriter, WrittenTree
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import (
    ObjectStore,
    PackedObject,
    PackLog,
    PackTransaction,
    Repository,
    hash_object,
)
from weakincentives.history import EntryState, Place, open_file
from weakincentives.posix import RootedDirectory, os_error

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_MIN_INDEX_CHANGES = 100  # new files that make it worthwhile to write the index
_CHUNK = 1024 * 1024
_MAX_VIEWS = 4
_SMALL_BLOB = 4096  # bytes; the target of a link is never longer


class UnstoredObjects(PackTransaction):
    """A pack transaction that writes nothing; it holds trees and small blobs in memory."""

    def __init__(self, objects: ObjectStore) -> None:
        """Hold objects that are not in `objects`."""
        super().__init__(Path(), objects.is_packed, durable=False)
        self.content: dict[str, tuple[str, bytes]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, kind: str, data: bytes) -> str:
        """Add an object; return its id."""
        object_id = hash_object(kind, data)
        if object_id not in self:
            self._added.add(object_id)
            self.sizes[object_id] = len(data)
            if kind != "blob" or len(data) <= _SMALL_BLOB:
                self.content[object_id] = kind, data
        return object_id

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of `size` bytes; return its id.

        Raises:
            ValueError: The chunks have another total size.
        """
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        length = 0
        for chunk in chunks:
            digest.update(chunk)
            length += len(chunk)
        if length != size:
            raise ValueError(f"Content has {length} bytes instead of {size}")
        object_id = digest.hexdigest()
        self._added.add(object_id)
        self.sizes[object_id] = size
        return object_id

    def add_raw(self, object_id: str, packed: PackedObject) -> None:
        """Add an object that is already packed."""
        del object_id  # computed again
        self.add(packed.kind, packed.content)

    def finish(self, also_sync: Sequence[int] = (), log: PackLog | None = None) -> str | None:
        """Do nothing: there is no pack to publish."""
        del also_sync, log  # nothing was written
        return None


class OverlaidObjects(ObjectStore):
    """The objects of a repository, overlaid with unstored ones."""

    def __init__(self, directory: Path, unstored: UnstoredObjects) -> None:
        """Read from `unstored` first, then from the `objects` directory of a repository."""
        super().__init__(directory)
        self._unstored = unstored

    def read(self, object_id: str) -> tuple[str, bytes]:
        """Return kind and content of an object.

        Raises:
            ObjectError: It is missing or damaged.
        """
        return self._unstored.content.get(object_id) or super().read(object_id)

    def size_of(self, object_id: str) -> int:
        """Return the size of an object.

        Raises:
            ObjectError: It is missing.
        """
        size = self._unstored.sizes.get(object_id)
        return super().size_of(object_id) if size is None else size


@dataclass(frozen=True, slots=True)
class PresentState:
    """The captured present state; `commit` is None if the store had no room for it."""

    tree: str
    commit: str | None
    snapshot: FilesystemSnapshot | None = None
    unstored: UnstoredObjects | None = None
    failure: OSError | None = None


class WorkspaceCommits:
    """Commits states of one directory to its repository, and reads them back."""

    def __init__(
        self, repository: Repository, directory: RootedDirectory, tracker: ChangeTracker, root: str
    ) -> None:
        """Commit the states of `directory`; snapshots name it `root`."""
        self.repository: Repository = repository
        self.directory: RootedDirectory = directory
        self.tracker: ChangeTracker = tracker
        self.root: str = root
        self._views: dict[str, SnapshotFilesystem] = {}
        self._epoch = repository.objects.losses

    def take(
        self, tag: str | None, fill: Callable[[TreeWriter], None] | None = None
    ) -> FilesystemSnapshot:
        """Capture and commit the present state, or what `fill` writes to the empty directory."""
        return self._take(tag, fill)[0]

    def _take(
        self, tag: str | None, fill: Callable[[TreeWriter], None] | None = None
    ) -> tuple[FilesystemSnapshot, str]:
        """Capture and commit the present state; return the tree of the commit too."""
        self.directory.check()
        objects = self.repository.objects
        with objects.begin_pack() as batch:
            written = None if fill is None else self._fill(batch, fill)
            result = self.tracker.capture(self.repository, batch, written)
            snapshot = self._commit(result.tree, tag, batch)
        objects.refresh()  # so that the new pack is missed if it disappears
        if written is not None:
            written.settle(self.directory)  # nobody else has changed it until now
        self.tracker.accept(result)  # not before its objects are stored
        self.tracker.save_index(self.repository, min_changes=_MIN_INDEX_CHANGES)
        return snapshot, result.tree

    def _fill(self, batch: PackTransaction, fill: Callable[[TreeWriter], None]) -> WrittenTree:
        with closing(TreeWriter(self.directory, batch)) as writer:
            fill(writer)
            return writer.finish()

    def take_present(self, tag: str) -> PresentState:
        """Capture the present state, and commit it unless the store has no room."""
        try:
            taken, tree = self._take(tag)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            failure = error
        else:
            return PresentState(tree, taken.commit_ref, taken)
        unstored = UnstoredObjects(self.repository.objects)
        result = self.tracker.capture(self.repository, unstored)
        commit = self.repository.find_commit(result.tree)  # an earlier snapshot of the same state
        return PresentState(result.tree, commit, None, unstored, failure)

    def capture_only(self) -> SnapshotFilesystem:
        """Capture the present state without storing anything."""
        unstored = UnstoredObjects(self.repository.objects)
        result = self.tracker.capture(self.repository, unstored)
        return self._view_tree(result.tree, unstored)

    def view_present(self, present: PresentState) -> SnapshotFilesystem:
        """Return a captured state, whether or not it is stored."""
        return self._view_tree(present.tree, present.unstored)

    def _view_tree(self, tree: str, unstored: UnstoredObjects | None) -> SnapshotFilesystem:
        objects = self.repository.objects
        if unstored is not None:
            objects = OverlaidObjects(self.repository.git_dir / "objects", unstored)
        return SnapshotFilesystem(objects, tree, self.root)

    def import_state(self, state: ReadableFilesystem, tag: str) -> str:
        """Commit `state`; return the commit."""
        with self.repository.objects.begin_pack() as batch:
            tree = import_tree(State(state), self.repository.objects, batch)
            return self._commit(tree, tag, batch).commit_ref

    def store_displaced(
        self, state: SnapshotFilesystem, files: Mapping[str, Place], tag: str
    ) -> FilesystemSnapshot:
        """Commit a state with these files in the place of its own.

        A file is given as an open directory and a name in it.

        Raises:
            OSError: One is a directory, or cannot be read.
        """
        with self.repository.objects.begin_pack() as batch:
            entries = {path: _store_entry(batch, place) for path, place in files.items()}
            for path, entry in entries.items():
                if entry.kind not in {"file", "symlink"}:
                    raise os_error(errno.EINVAL, path, "Only files and links can be stored")
            return self._commit(put_entries(state, entries, batch), tag, batch)

    def store_entries(
        self,
        state: SnapshotFilesystem,
        entries: Mapping[str, EntryState],
        contents: Mapping[str, Callable[[], int | None]],
        tag: str,
    ) -> FilesystemSnapshot:
        """Commit a state with other entries; `contents` open the files among them.

        Raises:
            OSError: A file is gone, or has another content.
        """
        with self.repository.objects.begin_pack() as batch:
            for path, entry in entries.items():
                if entry.kind == "file" and not self.repository.objects.is_packed(entry.blob):
                    _store_blob(batch, contents[path](), entry, path)
            return self._commit(put_entries(state, entries, batch), tag, batch)

    def store_call(
        self, state: SnapshotFilesystem, left: Mapping[str, EntryState], tag: str
    ) -> tuple[FilesystemSnapshot, FilesystemSnapshot | None]:
        """Commit a state with the paths of a call as it left them.

        What is not as it was left was saved since, and is no part of it: then the second state
        has it. The content that the call wrote there is gone.
        """
        with self.repository.objects.begin_pack() as batch:
            found = {path: self._store_path(batch, path) for path in left}
            own = {path: each for path, each in found.items() if is_same(each, left[path])}
            after = self._commit(put_entries(state, own, batch), tag, batch)
        if len(own) == len(found):
            return after, None
        others = {path: each for path, each in found.items() if path not in own}
        with self.repository.objects.begin_pack() as batch:
            tree = put_entries(self.view(after.commit_ref), others, batch)
            return after, self._commit(tree, "saved after a call", batch)

    def _store_path(self, batch: PackTransaction, path: str) -> EntryState:
        try:
            parent, name = self.directory.open_parent(path)
        except FileNotFoundError:
            return EntryState()
        try:
            return _store_entry(batch, (parent, name))
        finally:
            os.close(parent)

    def view(self, commit: str) -> SnapshotFilesystem:
        """Return the state of a commit; that of one just seen is not read again.

        Raises:
            SnapshotRestoreError: The commit is missing or damaged.
        """
        found = self._views.pop(commit, None)
        if found is None or self._epoch != self.repository.objects.losses:
            self._epoch = self.repository.objects.losses
            found = view_commit(self.repository, commit, self.root)
        self._views[commit] = found
        if len(self._views) > _MAX_VIEWS:
            del self._views[next(iter(self._views))]
        return found

    def _commit(self, tree: str, tag: str | None, batch: PackTransaction) -> FilesystemSnapshot:
        snapshot_id, now = uuid4(), datetime.now(UTC)
        ref = self.repository.commit(
            tree, snapshot_id=str(snapshot_id), created_at=now, tag=tag, batch=batch
        )
        git_dir = str(self.repository.git_dir)
        return FilesystemSnapshot(snapshot_id, now, ref, self.root, git_dir, tag)


def view_commit(repository: Repository, commit: str, root: str) -> SnapshotFilesystem:
    """Return the state of a commit in any repository, taken of the workspace at `root`.

    Raises:
        SnapshotRestoreError: The commit is missing or damaged.
    """
    try:
        tree = repository.read_commit(commit).tree
    except SnapshotError as error:
        raise SnapshotRestoreError(str(error)) from error
    return SnapshotFilesystem(repository.objects, tree, root)


def _store_entry(batch: PackTransaction, place: Place) -> EntryState:
    """Store an entry; return its state."""
    parent, name = place
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return EntryState()
    if stat.S_ISLNK(found.st_mode):
        return EntryState("symlink", target=os.readlink(name, dir_fd=parent))
    if not stat.S_ISREG(found.st_mode):
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "special"
        return EntryState(kind, stat.S_IMODE(found.st_mode))
    with open_file(place) as descriptor:
        blob, size = _add_file(batch, descriptor)
    return EntryState("file", stat.S_IMODE(found.st_mode), size, blob)


def _store_blob(
    batch: PackTransaction, descriptor: int | None, entry: EntryState, path: str
) -> None:
    if descriptor is None:
        raise os_error(errno.ENOENT, path)
    try:
        if _add_file(batch, descriptor)[0] != entry.blob:
            raise os_error(errno.ESTALE, path, "Changed while it was stored")
    finally:
        os.close(descriptor)


def _add_file(batch: PackTransaction, descriptor: int) -> tuple[str, int]:
    size = os.fstat(descriptor).st_size
    chunks = iter(lambda: os.read(descriptor, _CHUNK), b"")
    return batch.add_blob(size, chunks), size
