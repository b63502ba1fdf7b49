"""Checkpoints: coordinated snapshots of session and files, and a crash-safe session file."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, SnapshotableFilesystem
from weakincentives.posix import read_regular, store_private
from weakincentives.runtime.session import Session, Snapshot, SnapshotFormatError
from weakincentives.runtime.telemetry.tracing import restore_snapshot, take_snapshot

_MAX_BYTES = 1024**3
_DONE, _PENDING = b"wink-session 1 done\n", b"wink-session 1 pending\n"


def checkpoint(
    session: Session, filesystem: SnapshotableFilesystem, tag: str | None = None
) -> Snapshot:
    """Take a snapshot of files and session; both have the same ID.

    Raises:
        SnapshotError: The snapshot of the files failed; nothing was stored.
    """
    snapshot = take_snapshot(filesystem, tag)
    session[FilesystemSnapshot].append(snapshot)
    return session.snapshot(tag, snapshot_id=snapshot.snapshot_id)


def rollback_to(
    session: Session, session_snapshot: Snapshot, filesystem: SnapshotableFilesystem | None = None
) -> None:
    """Restore both session and files, or neither.

    The files are restored to the latest filesystem snapshot in the session snapshot; if
    there is none, they are left alone.

    Raises:
        SnapshotRestoreError: The files could not be restored; nothing has changed.
    """
    files = get_filesystem_snapshot(session_snapshot)
    savepoint = session.savepoint()
    session.restore(session_snapshot)
    try:
        if files is not None and filesystem is not None:
            restore_snapshot(filesystem, files)
            # events of the restore were folded into the restored slices: restore these again;
            # slices of the same moment agree with the files and keep their versions and dates
            same_moment = files.snapshot_id == session_snapshot.snapshot_id
            session.restore(session_snapshot, refresh=not same_moment)
    except BaseException:
        session.restore_savepoint(savepoint)
        raise


def get_filesystem_snapshot(session_snapshot: Snapshot) -> FilesystemSnapshot | None:
    """Return the latest filesystem snapshot in a session snapshot, or None."""
    found = session_snapshot.slices.get(FilesystemSnapshot, ())
    return found[-1] if found else None


class SessionFile:
    """A session stored on disk, always consistent with the files of its workspace.

    The file is replaced atomically. A rollback is recorded before the files are touched
    (write-ahead): if the process dies in between, `resume` finishes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Use the file at `path`; it need not exist yet."""
        self._path = Path(path)

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot of the session."""
        store_private(self._path, _DONE + snapshot.to_json().encode())

    def rollback(
        self, session: Session, snapshot: Snapshot, filesystem: SnapshotableFilesystem
    ) -> None:
        """Restore session, files and this file, or none of them.

        Raises:
            SnapshotRestoreError: The files could not be restored; nothing has changed.
        """
        before = self._read() if self._path.exists() else None
        data = snapshot.to_json().encode()
        store_private(self._path, _PENDING + data)
        try:
            rollback_to(session, snapshot, filesystem)
        except Exception:
            if before is None:
                self._path.unlink(missing_ok=True)
            else:
                store_private(self._path, before)
            raise
        store_private(self._path, _DONE + data)

    def resume(
        self, types: Iterable[type[Any]], filesystem: SnapshotableFilesystem | None = None
    ) -> Snapshot:
        """Load the saved session, and finish an interrupted rollback.

        Args:
            types: The types of the slices; no module named in the file is imported.
            filesystem: The filesystem to which an interrupted rollback applies.

        Raises:
            FileNotFoundError: Nothing was saved.
            SnapshotFormatError: The file is not a session file, or is damaged.
            SnapshotRestoreError: An interrupted rollback could not be finished.
        """
        data = self._read()
        head, _, rest = data.partition(b"\n")
        if head + b"\n" not in {_DONE, _PENDING}:
            raise SnapshotFormatError(f"Not a session file: {str(self._path)!r}")
        snapshot = Snapshot.from_json(rest.decode(errors="replace"), types)
        if head + b"\n" == _PENDING:
            self._finish_rollback(snapshot, filesystem)
            store_private(self._path, _DONE + rest)
        return snapshot

    def _finish_rollback(
        self, snapshot: Snapshot, filesystem: SnapshotableFilesystem | None
    ) -> None:
        files = get_filesystem_snapshot(snapshot)
        if files is None:
            return
        if filesystem is None:
            raise SnapshotRestoreError(
                f"Failed to restore: a rollback of {str(self._path)!r} was interrupted; pass the"
                f" filesystem to finish it"
            )
        restore_snapshot(filesystem, files)

    def _read(self) -> bytes:
        """Return the content; links are not followed, as writing would replace the link."""
        return read_regular(self._path, _MAX_BYTES)
