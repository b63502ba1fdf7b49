"""Hydration: copy folders of the host into a workspace, all or none.

Everything new is staged in a hidden directory beside its destination and published by
renames. A directory that is entirely new appears in one step. If anything fails before the
end, what was published is undone and the staging directories are removed.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from weakincentives import posix
from weakincentives.filesystem.base import ensure_overwritable, link_error
from weakincentives.filesystem.events import DirectoryCreated, Listeners
from weakincentives.filesystem.limits import Quota
from weakincentives.filesystem.mounts.mount import (
    HostMount,
    MountReport,
    ProgressListener,
    ProgressMeter,
)
from weakincentives.filesystem.mounts.plan import MountCopy, MountedFile, MountPlan
from weakincentives.filesystem.mounts.roots import HostRoots
from weakincentives.filesystem.types import FileStat, WriteMode

_log = logging.getLogger(__name__)


@runtime_checkable
class Mountable(Protocol):
    """Copies folders of the host into the workspace."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, allowed_roots: HostRoots | None = None
    ) -> tuple[MountReport, ...]:
        """Copy several folders or files of the host, all or none."""
        ...


class StagedEntry(NamedTuple):
    """An entry staged at `hidden`, to be published at `path`.

    `saved` is a copy of the file that it replaces.
    """

    hidden: str
    path: str
    saved: str | None = None


@dataclass(slots=True)
class SingleFile:
    """A file that is published on its own, into a directory that exists."""

    hidden: str
    before: FileStat | None
    saved: str | None = None
    stored: bool = False


class Layout:
    """Where each entry of the mounts is staged, and the steps that publish them.

    Raises:
        NotADirectoryError: A file is where a directory must go.
        IsADirectoryError: A directory is where a file must go.
        PermissionError: A symbolic link of the workspace is in the way.
    """

    def __init__(self, lookup: Callable[[str], FileStat | None]) -> None:
        """Look up entries of the workspace with `lookup`."""
        self._lookup = lookup
        # the staging path of each directory; None: it exists in the workspace
        self._staging_directories: dict[str, str | None] = {"": None}
        self.hidden: dict[str, str] = {}
        self.directories: list[StagedEntry] = []
        self._new_directories: list[StagedEntry] = []
        self.files: dict[str, MountedFile] = {}
        self.staging_paths: dict[str, str] = {}
        self.single_files: dict[str, SingleFile] = {}

    def add(self, plan: MountPlan) -> None:
        """Add all entries of `plan`; they replace entries that were added before."""
        for path in plan.directories:
            self._staging_directory(path)
        for file in plan.files:
            self._add_file(file)

    @property
    def total_bytes(self) -> int:
        """The number of bytes to copy."""
        return sum(file.size for file in self.files.values())

    def growth(self) -> tuple[int, int]:
        """Return how many bytes and entries the workspace will grow by."""
        replaced = [each.before for each in self.single_files.values() if each.before is not None]
        count = len(self.files) + len(self.directories) - len(replaced)
        return self.total_bytes - sum(found.size_bytes for found in replaced), count

    def steps(self) -> list[StagedEntry]:
        """Return the steps that publish what has been staged."""
        return self._new_directories + [
            StagedEntry(single.hidden, path, single.saved)
            for path, single in self.single_files.items()
            if single.stored
        ]

    def translate_error(self, error: OSError) -> OSError:
        """Return the error with the published path in place of a staging path."""
        named = error.filename
        for parent, hidden in self.hidden.items():
            prefix = posix.display_path(hidden)
            if isinstance(named, str) and named.startswith(prefix):
                path = posix.join(
                    posix.display_path(parent) if parent else "", named[len(prefix) + 1 :]
                )
                return OSError(error.errno, error.strerror, path)
        return error

    def _add_file(self, file: MountedFile) -> None:
        path = file.path
        if path in self._staging_directories:
            raise posix.os_error(errno.EISDIR, path)
        earlier = self.files.get(path)
        self.files[path] = file
        if earlier is not None:
            earlier.plan.skip(earlier.below, "replaced by a later mount")
            return
        parent, _, name = path.rpartition("/")
        directory = self._staging_directory(parent)
        if directory is not None:
            self.staging_paths[path] = f"{directory}/{name}"
            return
        before = self._lookup(path)
        if before is not None:
            ensure_overwritable(before, "overwrite")
        hidden = self.staging_paths[path] = self._hidden_path(path)
        self.single_files[path] = SingleFile(hidden, before)

    def _staging_directory(self, path: str) -> str | None:
        """Return where the directory `path` is staged; None if it exists in the workspace."""
        known = self._staging_directories
        if path not in known:
            for each in (*posix.parents_of(path), path):
                if each not in known:
                    known[each] = self._stage_directory(each)
        return known[path]

    def _stage_directory(self, path: str) -> str | None:
        if path in self.files:
            raise posix.os_error(errno.ENOTDIR, path)
        above = self._staging_directories[posix.parent_of(path)]
        if above is not None:
            hidden = f"{above}/{path.rpartition('/')[2]}"
        elif self._is_directory(path):
            return None
        else:
            hidden = self._hidden_path(path)
            self._new_directories.append(StagedEntry(hidden, path))
        self.directories.append(StagedEntry(hidden, path))
        return hidden

    def _is_directory(self, path: str) -> bool:
        found = self._lookup(path)
        if found is None:
            return False
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise posix.os_error(errno.ENOTDIR, path)
        return True

    def _hidden_path(self, path: str) -> str:
        """Return the staging path of an entry that will be published in an existing directory."""
        parent = posix.parent_of(path)
        if parent not in self.hidden:
            self.hidden[parent] = posix.join(parent, posix.temporary_name())
        return posix.join(self.hidden[parent], path.rpartition("/")[2])


class MountTarget(NamedTuple):
    """The steps of the filesystem that mounts are copied into."""

    lookup: Callable[[str], FileStat | None]
    make_directory: Callable[[str], None]
    store: Callable[..., None]
    """Create a file from its path, bytes and `permissions`."""
    store_pieces: Callable[..., None]
    """The same for a large file, from an iterator of bytes."""
    remove: Callable[[str], None]
    move: Callable[[str, str], None]
    copy_file: Callable[[FileStat, str], None]
    check_files: Callable[[Iterable[MountedFile]], None]
    with_hash: Callable[[FileStat], FileStat]
    emit_write: Callable[[str, int, WriteMode, FileStat | None], None]
    """Emit the event for a file of so many bytes that replaced another, or none."""
    quota: Quota
    listeners: Listeners


class Hydration:
    """One hydration: some mounts, staged and then published."""

    def __init__(self, target: MountTarget, copies: Sequence[MountCopy]) -> None:
        """Copy the files of `copies` into `target`."""
        self._target = target
        self._copies = copies
        self._layout = Layout(target.lookup)
        self._made: list[str] = []
        for copy in copies:
            self._layout.add(copy.plan)

    def run(self, progress: ProgressListener | None) -> None:
        """Copy everything, or change nothing; the caller holds the write lock."""
        target, layout = self._target, self._layout
        if target.quota:
            target.quota.admit(*layout.growth())
        target.check_files(layout.files.values())
        try:
            self._stage(progress)
            self._save_originals()
            posix.fault_point("mount.staged")
            self._publish()
        except OSError as error:
            raise layout.translate_error(error) from None
        finally:
            for hidden in self._made:
                with suppress(OSError):  # it has a reserved name: the next cleanup removes it
                    target.remove(hidden)
        if target.listeners:
            self._emit_events()

    def _stage(self, progress: ProgressListener | None) -> None:
        """Copy everything into staging directories, which are invisible."""
        target, layout = self._target, self._layout
        for hidden in layout.hidden.values():
            target.make_directory(hidden)
            self._made.append(hidden)
        for step in layout.directories:
            target.make_directory(step.hidden)
        meter = ProgressMeter(progress, len(layout.files), layout.total_bytes)
        for copy in self._copies:
            wanted = [file for file in copy.plan.files if layout.files[file.path] is file]
            copy.run(wanted, self._store, meter)

    def _store(self, file: MountedFile, content: bytes | Iterator[bytes]) -> None:
        path = self._layout.staging_paths[file.path]
        if isinstance(content, bytes):
            self._target.store(path, content, permissions=file.permissions)
        else:
            self._target.store_pieces(path, content, permissions=file.permissions)
        if file.path in self._layout.single_files:
            self._layout.single_files[file.path].stored = True

    def _save_originals(self) -> None:
        """Copy the files that will be replaced, so that publishing can be undone."""
        for single in self._layout.single_files.values():
            if single.stored and single.before is not None:
                single.before = self._target.with_hash(single.before)
                single.saved = posix.join(posix.parent_of(single.hidden), posix.temporary_name())
                self._target.copy_file(single.before, single.saved)

    def _publish(self) -> None:
        """Rename everything into place, or nothing."""
        done: list[StagedEntry] = []
        try:
            for step in self._layout.steps():
                posix.fault_point("mount.publish")
                self._target.move(step.hidden, step.path)
                done.append(step)
        except BaseException:
            for step in reversed(done):
                self._undo(step)
            raise

    def _undo(self, step: StagedEntry) -> None:
        """Undo a step; a failure is logged, and the other steps are still undone."""
        try:
            if step.saved is None:
                self._target.remove(step.path)
            else:
                self._target.move(step.saved, step.path)
        except OSError as error:
            _log.warning("Could not undo %r after a mount failed: %s", step.path, error)

    def _emit_events(self) -> None:
        target, layout = self._target, self._layout
        created = {step.path for step in layout.directories}
        for path in sorted(created | layout.files.keys()):
            if path in created:
                target.listeners.notify(DirectoryCreated(path))
                continue
            found, single = target.lookup(path), layout.single_files.get(path)
            if found is not None and (single is None or single.stored):
                before = None if single is None else single.before
                target.emit_write(path, found.size_bytes, "overwrite", before)
