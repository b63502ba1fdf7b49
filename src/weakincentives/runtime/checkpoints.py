"""Checkpoints: session and files, kept under one id and brought back together."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, SnapshotableFilesystem
from weakincentives.posix import read_regular, store_file, sync_directory, write_all
from weakincentives.runtime.session import Session, Snapshot, SnapshotFormatError
from weakincentives.runtime.telemetry.spans import restore_snapshot, take_snapshot

_MAX_BYTES = 1024**3
_DONE, _PENDING = b"wink-session 1 done\n", b"wink-session 1 pending\n"


def checkpoint(
    session: Session, filesystem: SnapshotableFilesystem, tag: str | None = None
) -> Snapshot:
    """Keep session and files as they are now; both snapshots have one id.

    Raises:
        SnapshotError: The files could not be kept, so nothing was.
    """
    kept = take_snapshot(filesystem, tag)
    session[FilesystemSnapshot].append(kept)
    return session.snapshot(tag, snapshot_id=kept.snapshot_id)


def rollback_to(
    session: Session,
    session_snapshot: Snapshot,
    filesystem: SnapshotableFilesystem | None = None,
) -> None:
    """Bring back both, session and files, or neither.

    The files go to the latest snapshot of them that the session knew then; if it knew
    none, they stay.

    Raises:
        SnapshotRestoreError: The files cannot be brought back; nothing has changed.
    """
    kept = files_of(session_snapshot)
    mark = session.mark()
    session.restore(session_snapshot)
    try:
        if kept is not None and filesystem is not None:
            restore_snapshot(filesystem, kept)
            # what is told while files come back is folded into what the session knew then; what
            # was kept at the same moment agrees with the files, and keeps its versions and dates
            same_moment = kept.snapshot_id == session_snapshot.snapshot_id
            session.restore(session_snapshot, refresh=not same_moment)
    except BaseException:
        session.restore_mark(mark)
        raise


def files_of(session_snapshot: Snapshot) -> FilesystemSnapshot | None:
    """Return the latest snapshot of files that a session knew, or None."""
    found = session_snapshot.slices.get(FilesystemSnapshot, ())
    return found[-1] if found else None


class SessionFile:
    """A session on disk; it and the files stay in step whatever happens.

    The file is written in one step. A rollback is written down before the files are
    touched: if the process ends in between, `resume` finishes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Use the file at `path`, which need not be there yet."""
        self._path = Path(path)

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot of the session."""
        self._write(_DONE + snapshot.to_json().encode())

    def roll_back(
        self, session: Session, snapshot: Snapshot, filesystem: SnapshotableFilesystem
    ) -> None:
        """Bring back session, files and this file, or none of them.

        Raises:
            SnapshotRestoreError: The files cannot be brought back; nothing has changed.
        """
        before = self._read() if self._path.exists() else None
        data = snapshot.to_json().encode()
        self._write(_PENDING + data)
        try:
            rollback_to(session, snapshot, filesystem)
        except Exception:
            self._put_back(before)
            raise
        self._write(_DONE + data)

    def resume(
        self, types: Iterable[type[Any]], filesystem: SnapshotableFilesystem | None = None
    ) -> Snapshot:
        """Return the session that was saved, and finish a rollback that was cut off.

        Args:
            types: The types of the slices; nothing that the file names is imported.
            filesystem: Where the files are.

        Raises:
            FileNotFoundError: Nothing was saved.
            SnapshotFormatError: The file is not one of ours, or damaged.
            SnapshotRestoreError: A rollback was cut off and cannot be finished.
        """
        data = self._read()
        head, _, rest = data.partition(b"\n")
        if head + b"\n" not in {_DONE, _PENDING}:
            raise SnapshotFormatError(f"Not a session: {str(self._path)!r}")
        snapshot = Snapshot.from_json(rest.decode(errors="replace"), types)
        if head + b"\n" == _PENDING:
            self._finish(snapshot, filesystem)
            self._write(_DONE + rest)
        return snapshot

    def _finish(self, snapshot: Snapshot, filesystem: SnapshotableFilesystem | None) -> None:
        kept = files_of(snapshot)
        if kept is None:
            return
        if filesystem is None:
            raise SnapshotRestoreError(
                f"Failed to restore: a rollback of {str(self._path)!r} was cut off, and needs"
                f" the filesystem to be finished"
            )
        restore_snapshot(filesystem, kept)

    def _read(self) -> bytes:
        """Return the content; a link is not followed, for we write a file."""
        return read_regular(self._path, _MAX_BYTES)

    def _put_back(self, before: bytes | None) -> None:
        if before is None:
            self._path.unlink(missing_ok=True)
        else:
            self._write(before)

    def _write(self, data: bytes) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            store_file(
                directory,
                self._path.name,
                lambda target: write_all(target, data),
                permissions=0o600,
                durable=True,
            )
            sync_directory(directory)
        finally:
            os.close(directory)
