"""The base classes of backends: archives, mounts and savepoints on top of the primitives."""

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn, SupportsIndex, TypeGuard

from weakincentives.filesystem.archive import (
    DEFAULT_ARCHIVE_LIMITS,
    ArchiveFilesystem,
    ArchiveLimits,
    export_archive,
)
from weakincentives.filesystem.base import ReadableFilesystem, WritableFilesystem
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.limits import check_fits
from weakincentives.filesystem.mounts import (
    AllowedRoots,
    HostMount,
    HostRoots,
    Hydration,
    MountCopy,
    MountedFile,
    MountPlan,
    MountReport,
    MountTarget,
    ProgressListener,
)
from weakincentives.filesystem.protocol import Archivable, ArchivableFilesystem
from weakincentives.filesystem.savepoints import Savepoint, SavepointStorage
from weakincentives.filesystem.types import FilesystemSnapshot
from weakincentives.posix import CloseOnExit, join, temporary_name

_LEAVE_OUT = "leave it out with exclude_glob or max_file_bytes, or work in a HostFilesystem"


class BaseFilesystem(WritableFilesystem, CloseOnExit):
    """The class to derive a backend from; a backend supplies only primitives."""

    def export_archive(
        self,
        path: str | os.PathLike[str],
        *,
        created_at: datetime | None = None,
        previous: str | os.PathLike[str] | None = None,
    ) -> int:
        """Write the whole state to a ZIP file; return the number of files.

        The same state and `created_at` give the same bytes. Unchanged files are copied from
        the archive `previous`, which may be the one at `path`.

        Raises:
            OSError: Something cannot be read or written; the file at `path` is unchanged.
        """
        earlier = None if previous is None else Path(previous)
        return export_archive(self, Path(path), created_at=created_at, previous=earlier)

    def import_archive(
        self,
        path: str | os.PathLike[str],
        *,
        archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
    ) -> int:
        """Replace everything with the content of a ZIP file; return the number of files.

        Every byte of the archive is verified before anything changes.

        Raises:
            ArchiveError: It is not an archive, damaged, or unsafe.
            LimitExceededError: It exceeds the quota.
            OSError: It cannot be read, or its content cannot be written.
        """
        self._ensure_writable("")
        archive = ArchiveFilesystem(Path(path), archive_limits=archive_limits)
        with archive as state, self._lock.mutex:
            self._lock.await_turn()
            rewritten = self._replace_all(state, Path(path).name)
            self._emit_replaced("import", os.fspath(path), rewritten)
            return state.manifest.file_count

    def hydrate_from_host(
        self,
        mount: HostMount,
        *,
        allowed_roots: HostRoots | None = None,
        progress: ProgressListener | None = None,
    ) -> MountReport:
        """Copy a folder or file of the host into the workspace, or change nothing.

        Existing files are replaced, directories merge. Names and sizes are bound by the quota
        only.

        Args:
            mount: What to copy.
            allowed_roots: The directories that the host path must be below; None allows the
                current directory, an empty sequence nothing.
            progress: Called at every hundredth of the work; an exception stops the mount.

        Raises:
            PathEscapeError: The host path is not below an allowed root.
            LimitExceededError: The files exceed `max_bytes` or the quota.
            OSError: Something is in the way, or the host or the workspace fails.
        """
        (report,) = self.hydrate_all_from_host(
            (mount,), allowed_roots=allowed_roots, progress=progress
        )
        return report

    def hydrate_all_from_host(
        self,
        mounts: Sequence[HostMount],
        *,
        allowed_roots: HostRoots | None = None,
        progress: ProgressListener | None = None,
    ) -> tuple[MountReport, ...]:
        """Copy several folders or files of the host, all or none; later ones win.

        Arguments and errors are those of `hydrate_from_host`.
        """
        self._ensure_writable("")
        with AllowedRoots(allowed_roots) as roots:
            copies = [MountCopy(MountPlan(mount, roots)) for mount in mounts]
            with self._lock.mutex:
                self._lock.await_turn()
                Hydration(self._mount_target(), copies).run(progress)
        return tuple(copy.report() for copy in copies)

    def hold(self) -> Callable[[], None]:
        """Acquire the write lock; return the function that releases it.

        For changes that bypass the filesystem and are undone by restoring a snapshot: that
        would undo concurrent changes too. Release it in the same thread.

        Raises:
            TimeLimitError: Another thread did not end its savepoint in time.
        """
        return self._lock.hold()

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Keep a snapshot from being forgotten until the returned function is called.

        Transactions pin the snapshot they may restore. A backend that can forget snapshots
        overrides this.
        """
        del snapshot  # never forgotten here
        return lambda: None

    def close(self) -> None:
        """Release resources; open savepoints are rolled back."""
        self._lock.abandon_savepoints()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Prevent `copy` and `pickle`: two instances would share mutable state.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled:"
            " use export_archive and import_archive to copy the files"
        )

    # --- steps that a backend may override ---

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Iterable[str] | None:
        """Replace everything with `state`, imported from `name`.

        The new state is copied into a hidden directory first. If moving it into place
        fails, everything is moved back; a backend that can swap atomically overrides this.
        Return the files whose bytes changed, or None if that is not known.
        """
        target = State(state)
        self._check_quota_for(target)
        hidden, aside = temporary_name(), temporary_name()
        moved: list[tuple[str, str]] = []
        try:
            self._make_directory(aside)
            self._copy_state(target, hidden)
            for name in self._names("", {hidden, aside}):
                self._move(name, join(aside, name))
                moved.append((join(aside, name), name))
            for name in self._names(hidden, ()):
                self._move(join(hidden, name), name)
                moved.append((name, join(hidden, name)))
        except BaseException:
            for source, goal in reversed(moved):
                self._move(source, goal)
            raise
        finally:
            for path in (hidden, aside):
                if self._lookup(path) is not None:
                    self._remove(path)
        return None

    def _check_mount_sizes(self, files: Iterable[MountedFile]) -> None:
        """Check that every file fits into memory; a backend that stores pieces skips this."""
        for file in files:
            check_fits(file.path, file.size, file.size, self._limits, instead=_LEAVE_OUT)

    def _store_pieces(self, path: str, pieces: Iterator[bytes], *, permissions: int) -> None:
        """Create a large file from its bytes in order, which need not fit into memory."""
        self._store(path, b"".join(pieces), permissions=permissions)

    # --- shared steps ---

    def _mount_target(self) -> MountTarget:
        return MountTarget(
            lookup=self._lookup,
            make_directory=self._make_directory,
            store=self._store,
            store_pieces=self._store_pieces,
            remove=self._remove,
            move=self._move,
            copy_file=self._copy_file,
            check_files=self._check_mount_sizes,
            with_hash=self._with_hash,
            emit_write=self._emit_write,
            quota=self._quota,
            listeners=self._listeners,
        )

    def _check_quota_for(self, state: State) -> None:
        if self._quota:
            found = [
                each for _, children in state.directories("Import") for each in children.values()
            ]
            self._quota.check(sum(each.size_bytes for each in found), len(found))

    def _copy_state(self, state: State, goal: str) -> None:
        self._make_directory(goal)
        for _, children in state.directories("Import"):
            for found in children.values():
                target = join(goal, found.path)
                if found.is_directory:
                    self._make_directory(target)
                elif found.link_target is not None:
                    self._make_link(target, found.link_target)
                elif found.is_file:
                    data = state.read(found)
                    self._store(target, data, permissions=found.permissions & 0o777)

    def _names(self, directory: str, without: Collection[str]) -> list[str]:
        groups = self._children(directory)
        return [name for group in groups for name in group if name not in without]


class TransactionalFilesystem(BaseFilesystem):
    """The class to derive a backend with savepoints from."""

    @abstractmethod
    def _savepoint_storage(self) -> SavepointStorage:
        """Return the stack of savepoints that this backend keeps."""

    def savepoint(self) -> Savepoint:
        """Open a savepoint, which can undo all later changes through this object.

        Until it ends, other threads wait before they change anything. Changes that bypass
        the filesystem are not covered; take a snapshot for those.

        Raises:
            TimeLimitError: Another thread did not end its savepoint in time.
        """
        return Savepoint(self._lock, self._savepoint_storage(), self._emit_rollback)

    def _emit_rollback(self) -> None:
        self._emit_replaced("rollback", "savepoint")


def is_exportable(filesystem: object) -> TypeGuard[ReadableFilesystem | ArchivableFilesystem]:
    """Return whether `export_state` can archive the files of `filesystem`."""
    return isinstance(filesystem, (ReadableFilesystem, ArchivableFilesystem))


def export_state(
    filesystem: ReadableFilesystem | ArchivableFilesystem,
    path: Path,
    *,
    created_at: datetime | None = None,
    previous: Path | None = None,
) -> int:
    """Export any filesystem to an archive; return the number of files in it.

    A backend that is not derived from ours writes its archive without `created_at` and
    `previous`, which are not part of the `Archivable` protocol.
    """
    if isinstance(filesystem, BaseFilesystem):
        return filesystem.export_archive(path, created_at=created_at, previous=previous)
    if isinstance(filesystem, ReadableFilesystem):
        return export_archive(filesystem, path, created_at=created_at, previous=previous)
    return filesystem.export_archive(path)


def import_state(filesystem: Archivable, path: Path, archive_limits: ArchiveLimits) -> int:
    """Import an archive into any filesystem; return the number of files in it.

    `archive_limits` bind our own backends only: they are not part of the `Archivable` protocol.
    """
    if isinstance(filesystem, BaseFilesystem):
        return filesystem.import_archive(path, archive_limits=archive_limits)
    return filesystem.import_archive(path)
