"""Crash recovery of a restore: a write-ahead intent record, rolled forward after a crash.

A restore commits the present state, writes the intent, applies the changes and clears the
intent. The next process that opens the directory after a crash finishes the restore.
A restore that fails without a crash is rolled back to the present state it committed, or
rolled forward if there was no room to commit that.

The record occupies its place on disk from the start, so that it can be written when the disk
is full. A checksum shows whether the record is complete.
"""

import errno
import hashlib
import logging
import os
from functools import partial
from pathlib import Path

import msgspec

from weakincentives.errors import SnapshotError, SnapshotRestoreError, WinkError
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.host.snapshots.commits import PresentState, WorkspaceCommits
from weakincentives.filesystem.host.snapshots.restore import apply_restore, plan_restore
from weakincentives.filesystem.host.snapshots.tree import CapturedDirectory
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.gitstore import ObjectError
from weakincentives.posix import is_hidden, os_error, read_regular, sync_directory

_RECORD_SIZE = 4096
# no record, or a file that is not ours: opening the store reports the latter
_NO_RECORD = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES),
        *(errno.EPERM, errno.EFBIG),  # not a regular file, or not written by us
    }
)
_log = logging.getLogger(__name__)


class Intent(msgspec.Struct, frozen=True):
    """A restore to `commit` that has been decided on.

    `root` is the device and inode of the directory. With `paths` only they and what is
    below them are restored.
    """

    commit: str
    root: tuple[int, int]
    paths: tuple[str, ...] | None = None


class IntentFile:
    """The intent record of a snapshot store."""

    def __init__(self, path: Path) -> None:
        """Use `path`; `prepare` creates it."""
        self._path = path

    def prepare(self) -> None:
        """Allocate the record on disk, once."""
        if not self._path.exists():
            self._write(b"")
            sync_directory(self._path.parent)

    def read(self) -> Intent | None:
        """Return the intent of an unfinished restore, or None."""
        try:
            data = read_regular(self._path, _RECORD_SIZE)
        except OSError as error:
            if error.errno in _NO_RECORD:
                return None
            raise
        digest, _, rest = data.partition(b"\n")
        record, _, _ = rest.partition(b"\n")
        if digest != hashlib.sha256(record).hexdigest().encode() or not record:
            return None
        try:
            return msgspec.json.decode(record, type=Intent)
        except msgspec.MsgspecError:
            return None

    def write(self, intent: Intent) -> None:
        """Record `intent`, synced."""
        self._write(msgspec.json.encode(intent))

    def clear(self) -> None:
        """Record that nothing is unfinished, synced."""
        self._write(b"")

    def _write(self, record: bytes) -> None:
        digest = hashlib.sha256(record).hexdigest().encode()
        data = (digest + b"\n" + record + b"\n").ljust(_RECORD_SIZE, b"\0")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if os.pwrite(descriptor, data, 0) != len(data):
                raise os_error(errno.ENOSPC, str(self._path))
            os.fdatasync(descriptor)  # its place is allocated: no metadata has to be written
        finally:
            os.close(descriptor)


class RestoreRunner:
    """Runs restores of one directory, so that neither a crash nor an error leaves half of one."""

    def __init__(self, commits: WorkspaceCommits, intents: IntentFile) -> None:
        """Restore states of `commits`; record the intents in `intents`."""
        self.commits: WorkspaceCommits = commits
        self._intents = intents
        self.is_unfinished: bool = False
        """Whether a restore failed half-way and could be neither finished nor rolled back."""
        self.found: FilesystemSnapshot | None = None
        """The state in which a crash, and whoever changed files since, left the directory."""

    def directory_identity(self) -> tuple[int, int]:
        """Return device and inode, which distinguish the directory from a replacement."""
        found, _ = self.commits.directory.lstat("")
        return found.st_dev, found.st_ino

    def run(self, intent: Intent, before: PresentState, target: SnapshotFilesystem) -> list[str]:
        """Restore `target`; after an error the directory is as it was `before`.

        Return the files that were written.
        """
        try:
            return self.apply(intent, target, before.directory)
        except (Exception, KeyboardInterrupt) as error:
            if self._intents.read() is None:  # nothing has changed yet
                raise
            if before.commit is not None:
                self._roll_back(before.commit)
                raise
            written = self._roll_forward(intent, target)
            if isinstance(error, KeyboardInterrupt):
                raise
            return written

    def apply(
        self, intent: Intent, target: SnapshotFilesystem, here: CapturedDirectory
    ) -> list[str]:
        """Make the directory, captured as `here`, equal to `target`; return the written files."""
        plan = plan_restore(here, target)
        if plan:
            self.commits.tracker.touch(*plan.paths)
            write_intent = partial(self._intents.write, intent)
            objects = self.commits.repository.objects
            apply_restore(self.commits.directory, objects, plan, target, write_intent)
        if plan or self._intents.read() is not None:
            self._intents.clear()
        return [path for path, _, _ in plan.stored]

    def recover(self, real_root: Path, *, read_only: bool) -> None:
        """Finish an interrupted restore; the present state is committed first.

        Raises:
            SnapshotError: There is one, but the filesystem is read-only.
            SnapshotRestoreError: It cannot be finished.
        """
        intent = self._intents.read()
        if intent is None:
            return
        root = self.commits.root
        if intent.root != self.directory_identity():
            _log.warning("Dropped an interrupted restore: the directory was replaced: %r", root)
            self._intents.clear()
            return
        if read_only:
            raise SnapshotError(
                f"An interrupted restore must be finished first: open for writing {root!r}"
            )
        _log.warning("Finishing an interrupted restore: %r", root)
        try:
            self._finish(intent)
        except (OSError, ObjectError, SnapshotError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore: an interrupted restore of {str(real_root)!r} cannot be"
                f" finished ({self.explain(error)}); fix that, or open the directory with"
                " read_only=True"
            ) from error

    def explain(self, error: Exception) -> Exception:
        """Return an error that names a place, unless `error` names a visible one."""
        return explain_store_error(error, self.commits.root, self.commits.repository.git_dir)

    def _finish(self, intent: Intent) -> None:
        commits = self.commits
        commits.tracker.invalidate()
        before = commits.take(f"before recovery of {intent.commit}")
        self.found = self.found or before
        target = commits.view(intent.commit)
        if intent.paths is not None:
            here = commits.view(before.commit_ref)
            states = State(here), State(target)
            # a path that is in neither state was removed before the crash
            paths = [path for path in intent.paths if any(each.lookup(path) for each in states)]
            tag = f"partial restore of {intent.commit}"
            merged = commits.merge(here, target, paths, tag)
            intent, target = Intent(merged, intent.root), commits.view(merged)
        self.apply(intent, target, commits.tracker.last)
        self.is_unfinished = False

    def _roll_back(self, commit: str) -> None:
        """Return to the state before a restore that failed half-way."""
        try:
            self.commits.tracker.invalidate()
            present = self.commits.take_present(f"halfway from {commit}")
            intent = Intent(commit, self.directory_identity())
            self.apply(intent, self.commits.view(commit), present.directory)
        except (OSError, ObjectError, SnapshotError) as error:
            self.is_unfinished = True
            raise SnapshotRestoreError(
                f"Failed to restore, and to roll back: {self.explain(error)};"
                " the next snapshot or restore tries again"
            ) from error

    def _roll_forward(self, intent: Intent, target: SnapshotFilesystem) -> list[str]:
        """Finish a restore that failed half-way: the state before is not stored."""
        try:
            self.commits.tracker.invalidate()
            return self.apply(intent, target, self.commits.capture_only())
        except (OSError, ObjectError, SnapshotError) as error:
            self.is_unfinished = True
            raise SnapshotRestoreError(
                "Failed to restore half-way, without room to keep the state before:"
                f" {self.explain(error)}; the next snapshot or restore tries again"
            ) from error


def explain_store_error(error: Exception, root: str, git_dir: Path) -> Exception:
    """Return an error that names a place, unless `error` names a visible one."""
    if not isinstance(error, OSError) or isinstance(error, WinkError):
        return error
    name = "" if error.filename is None else os.fsdecode(error.filename)
    if name and not name.startswith("/proc/") and not is_hidden(name):
        return error
    text = f"{error.strerror or 'Failed'} in the workspace, or in its store {git_dir}"
    return os_error(error.errno or errno.EIO, root, text)
