"""Snapshot commits of one workspace: captured, imported, merged and read back.

A full disk must not prevent a restore: `UnstoredObjects` then holds the present state in
memory, just enough of it to plan the restore.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.host.snapshots.edits import import_tree, is_same, put_entries
from weakincentives.filesystem.host.snapshots.tracker import ChangeTracker
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.writer import TreeWriter, WrittenTree
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import (
    LayeredObjects,
    ObjectStore,
    PackTransaction,
    Repository,
    hash_object,
)
from weakincentives.history import EntryState, LiveTree, Openers, describe, hash_content
from weakincentives.posix import OpenDescriptor, RootedDirectory, os_error, read_range

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_MIN_INDEX_CHANGES = 100  # new files that make it worthwhile to write the index
_MAX_ATTEMPTS = 10  # at a file that grows or shrinks while it is read
_MAX_VIEWS = 4
_MAX_TREES = 1_000  # that views share
_SMALL_BLOB = 4096  # bytes; the target of a link is never longer


class UnstoredObjects(PackTransaction):
    """A pack transaction that writes nothing; it holds trees and small blobs in memory."""

    def __init__(self, objects: ObjectStore) -> None:
        """Hold objects that are not in `objects`."""
        objects.refresh(closely=True)
        super().__init__(Path(), objects.is_packed, durable=False)
        self.held: dict[str, tuple[str, int, bytes]] = {}
        """Kind, size and content by id; of a large blob not the content."""

    def add(self, kind: str, data: bytes) -> str:
        """Add an object; return its id."""
        object_id = hash_object(kind, data)
        is_small = kind != "blob" or len(data) <= _SMALL_BLOB
        return self._hold(object_id, kind, len(data), data if is_small else b"")

    def add_blob(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob of `size` bytes; return its id."""
        return self._hold(hash_content(size, chunks), "blob", size, b"")

    def _hold(self, object_id: str, kind: str, size: int, data: bytes) -> str:
        if object_id not in self:
            self._added.add(object_id)
            self.held[object_id] = kind, size, data
        return object_id


class PresentState(NamedTuple):
    """The captured present state; its `commit` is empty if the store had no room for it."""

    state: SnapshotFilesystem
    snapshot: FilesystemSnapshot | None
    failure: OSError | None


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
        self._losses = repository.objects.losses
        self._epoch = ""
        self._last: FilesystemSnapshot | None = None  # of what the tracker has captured

    def take(
        self, tag: str | None, fill: Callable[[TreeWriter], None] | None = None
    ) -> FilesystemSnapshot:
        """Capture and commit the present state, or what `fill` writes to the empty directory.

        If nothing has changed since the last snapshot, the new one is another name of its
        commit, unless it has a tag.
        """
        again = self._name_again() if tag is None and fill is None else None
        return again or self._take(tag, fill)

    def _take(
        self,
        tag: str | None,
        fill: Callable[[TreeWriter], None] | None = None,
        *,
        wait: bool = True,
    ) -> FilesystemSnapshot:
        self.directory.check()
        objects = self.repository.objects
        with objects.begin_pack() as batch:
            written = None if fill is None else self._fill(batch, fill)
            result = self.tracker.capture(self.repository, batch, written)
            snapshot = self._commit(result.tree, tag, batch, wait=wait)
        if written is not None:
            written.settle(self.directory)  # nobody else has changed it until now
        self.tracker.accept(result)  # not before its objects are stored
        self.tracker.save_index(self.repository, min_changes=_MIN_INDEX_CHANGES)
        self._last = snapshot
        return snapshot

    def _fill(self, batch: PackTransaction, fill: Callable[[TreeWriter], None]) -> WrittenTree:
        with closing(TreeWriter(self.directory, batch)) as writer:
            fill(writer)
            return writer.finish()

    def take_present(self, tag: str, *, wait: bool) -> PresentState:
        """Capture the present state, and commit it unless the store has no room.

        Unless it has to `wait`, a small commit reaches the disk soon after.
        """
        try:
            taken = self._take(tag, wait=wait)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            state = self.capture_only()
            state.commit = self.repository.find_commit(state.tree_id) or ""  # an earlier snapshot
            return PresentState(state, None, error)
        return PresentState(self.view(taken.commit_ref), taken, None)

    def capture_only(self) -> SnapshotFilesystem:
        """Capture the present state without storing anything."""
        unstored = UnstoredObjects(self.repository.objects)
        result = self.tracker.capture(self.repository, unstored)
        objects = LayeredObjects(self.repository.objects, unstored.held.get)
        return SnapshotFilesystem(objects, result.tree, self.root)

    def import_state(self, state: ReadableFilesystem, tag: str) -> str:
        """Commit `state`; return the commit."""
        with self.repository.objects.begin_pack() as batch:
            tree = import_tree(State(state), self.repository.objects, batch)
            return self._commit(tree, tag, batch).commit_ref

    def store_entries(
        self,
        state: SnapshotFilesystem,
        entries: Mapping[str, EntryState],
        contents: Openers,
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
            return self._commit(put_entries(state, entries, batch.add), tag, batch)

    def store_call(
        self, state: SnapshotFilesystem, left: Mapping[str, EntryState], tag: str
    ) -> tuple[FilesystemSnapshot, FilesystemSnapshot | None]:
        """Commit a state with the paths of a call as it left them.

        What is not as it was left was saved since, and is no part of it: then the second state
        has it. The content that the call wrote there is gone.
        """
        with (
            closing(LiveTree(self.directory)) as tree,
            self.repository.objects.begin_pack() as batch,
        ):
            found = {path: describe(tree, path, partial(_add_file, batch, path)) for path in left}
            own = {path: each for path, each in found.items() if is_same(each, left[path])}
            after = self._commit(put_entries(state, own, batch.add), tag, batch)
        others = {path: each for path, each in found.items() if path not in own}
        if not others:
            return after, None
        state = self.view(after.commit_ref)
        return after, self.store_entries(state, others, {}, "saved after a call")

    def view(self, commit: str) -> SnapshotFilesystem:
        """Return the state of a commit; what was just seen or stored is not read again.

        Raises:
            SnapshotRestoreError: The commit is missing or damaged.
        """
        objects = self.repository.objects
        if (epoch := self.repository.epoch()) != self._epoch:
            objects.refresh()  # another process may have removed it
            self._epoch = epoch
        if self._losses != objects.losses:
            self._losses = objects.losses
            self._views, self._last = {}, None
        found = self._views.pop(commit, None)
        if found is None:
            like = next(reversed(self._views.values()), None)
            if like is not None and len(like.trees) > _MAX_TREES:
                like = None
            known = self._last is not None and self._last.commit_ref == commit
            tree = self.tracker.tree if known else None
            found = view_commit(self.repository, commit, self.root, tree, like)
        self._views[commit] = found
        if len(self._views) > _MAX_VIEWS:
            del self._views[next(iter(self._views))]
        return found

    def _name_again(self) -> FilesystemSnapshot | None:
        """Return another name of the last snapshot, None if that is not possible."""
        last = self._last
        if last is None or not self.tracker.is_unchanged(self.repository):
            return None
        now = max(datetime.now(UTC), last.created_at + timedelta(microseconds=1))
        name = self.repository.name_again(str(last.snapshot_id), last.commit_ref, now)
        if name is None:
            return None
        self._last = FilesystemSnapshot(name, now, last.commit_ref, self.root, last.git_dir)
        return self._last

    def _commit(
        self, tree: str, tag: str | None, batch: PackTransaction, *, wait: bool = True
    ) -> FilesystemSnapshot:
        snapshot_id, now = uuid4(), datetime.now(UTC)
        ref = self.repository.commit(
            tree, snapshot_id=str(snapshot_id), created_at=now, tag=tag, batch=batch, wait=wait
        )
        git_dir = str(self.repository.git_dir)
        return FilesystemSnapshot(snapshot_id, now, ref, self.root, git_dir, tag)


def view_commit(
    repository: Repository,
    commit: str,
    root: str,
    tree: str | None = None,
    like: SnapshotFilesystem | None = None,
) -> SnapshotFilesystem:
    """Return the state of a commit in any repository, taken of the workspace at `root`.

    Its `tree` may be known; what it shares with the state `like` is not read again.

    Raises:
        SnapshotRestoreError: The commit is missing or damaged.
    """
    try:
        tree = tree or repository.read_commit(commit).tree
    except SnapshotError as error:
        raise SnapshotRestoreError(str(error)) from error
    found = SnapshotFilesystem(repository.objects, tree, root, like=like)
    found.commit = commit
    return found


def _store_blob(
    batch: PackTransaction, descriptor: int | None, entry: EntryState, path: str
) -> None:
    if descriptor is None:
        raise os_error(errno.ENOENT, path)
    with OpenDescriptor(descriptor):
        if _add_file(batch, path, descriptor) != entry.blob:
            raise os_error(errno.ESTALE, path, "Changed while it was stored")


def _add_file(batch: PackTransaction, path: str, descriptor: int) -> str:
    """Add the content of an open file to `batch`, as it is at one moment; return its id."""
    for _ in range(_MAX_ATTEMPTS):
        size = os.fstat(descriptor).st_size
        with suppress(ValueError):  # it was cut meanwhile
            blob = batch.add_file(size, partial(read_range, descriptor))
            if os.fstat(descriptor).st_size == size:
                return blob
    raise os_error(errno.EBUSY, path, "File keeps changing while it is stored")
