"""Where everything of some mounts goes: what is there already, and what is to appear.

New things are built out of sight, in a hidden directory beside the place where they
will be seen. A directory that is new as a whole then appears in one step.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from weakincentives.filesystem.base import MovableFilesystem, ensure_overwritable, link_error
from weakincentives.filesystem.events import DirectoryCreated
from weakincentives.filesystem.memory_limit import check_fits
from weakincentives.filesystem.mounts.mount import (
    HostMount,
    MountReport,
    ProgressListener,
    ProgressMeter,
)
from weakincentives.filesystem.mounts.plan import MountCopy, MountedFile, MountPlan
from weakincentives.filesystem.mounts.roots import AllowedRoots, HostRoots
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import (
    display_path,
    fault_point,
    join,
    os_error,
    parent_of,
    parents_of,
    temporary_name,
)


class StagedEntry(NamedTuple):
    """Something that is built at `hidden` and will be seen at `path`.

    `saved` is a copy of what it replaces.
    """

    hidden: str
    path: str
    saved: str | None = None


@dataclass(slots=True)
class StagedFile:
    """A file that appears in a step of its own, in a directory that is there already."""

    hidden: str
    before: FileStat | None
    saved: str | None = None
    stored: bool = False


class Layout:
    """What is built where, and the steps in which it appears.

    Raises:
        NotADirectoryError: A directory would have to be where a file is.
        IsADirectoryError: A file would have to be where a directory is.
        PermissionError: A symbolic link of the workspace is in the way.
    """

    def __init__(self, lookup: Callable[[str], FileStat | None]) -> None:
        """Ask `lookup` what is in the workspace."""
        self._lookup = lookup
        # where each directory is built; None: it is there already
        self._homes: dict[str, str | None] = {"": None}
        self.hidden: dict[str, str] = {}
        self.made: list[str] = []
        self.directories: list[StagedEntry] = []
        self._tops: list[StagedEntry] = []
        self.files: dict[str, MountedFile] = {}
        self.places: dict[str, str] = {}
        self.singles: dict[str, StagedFile] = {}

    def add(self, plan: MountPlan) -> None:
        """Place everything that `plan` brings; what was placed before is replaced."""
        for path in plan.directories:
            self._home(path)
        for file in plan.files:
            self._place(file)

    @property
    def total_bytes(self) -> int:
        """How many bytes will be copied."""
        return sum(file.size for file in self.files.values())

    def growth(self) -> tuple[int, int]:
        """Return how many bytes and entries the workspace will grow by."""
        replaced = [each.before for each in self.singles.values() if each.before is not None]
        count = len(self.files) + len(self.directories) - len(replaced)
        return self.total_bytes - sum(found.size_bytes for found in replaced), count

    def steps(self) -> list[StagedEntry]:
        """Return the steps that make visible what has been built."""
        return self._tops + [
            StagedEntry(single.hidden, path, single.saved)
            for path, single in self.singles.items()
            if single.stored
        ]

    def explained(self, error: OSError) -> OSError:
        """Return the error with the path that people know, where it names a hidden one."""
        named = error.filename
        for parent, hidden in self.hidden.items():
            prefix = display_path(hidden)
            if isinstance(named, str) and named.startswith(prefix):
                path = join(display_path(parent) if parent else "", named[len(prefix) + 1 :])
                return OSError(error.errno, error.strerror, path)
        return error

    def _place(self, file: MountedFile) -> None:
        path = file.path
        if path in self._homes:
            raise os_error(errno.EISDIR, path)
        earlier = self.files.get(path)
        self.files[path] = file
        if earlier is not None:
            earlier.plan.skip(earlier.below, "replaced by a later mount")
            return
        parent, _, name = path.rpartition("/")
        home = self._home(parent)
        self.places[path] = self._single(path).hidden if home is None else f"{home}/{name}"

    def _single(self, path: str) -> StagedFile:
        before = self._lookup(path)
        if before is not None:
            ensure_overwritable(before, "overwrite")
        single = self.singles[path] = StagedFile(self._hidden(path), before)
        return single

    def _home(self, path: str) -> str | None:
        """Return where the directory at `path` is built, or None if it is there already."""
        if path not in self._homes:
            for each in (*parents_of(path), path):
                if each not in self._homes:
                    self._homes[each] = self._new_home(each)
        return self._homes[path]

    def _new_home(self, path: str) -> str | None:
        if path in self.files:
            raise os_error(errno.ENOTDIR, path)
        above = self._homes[parent_of(path)]
        if above is not None:
            hidden = f"{above}/{path.rpartition('/')[2]}"
        elif self._is_there(path):
            return None
        else:
            hidden = self._hidden(path)
            self._tops.append(StagedEntry(hidden, path))
        self.directories.append(StagedEntry(hidden, path))
        return hidden

    def _is_there(self, path: str) -> bool:
        found = self._lookup(path)
        if found is None:
            return False
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, path)
        return True

    def _hidden(self, path: str) -> str:
        """Return where something is built that will appear in a directory that is there."""
        parent = parent_of(path)
        if parent not in self.hidden:
            self.hidden[parent] = join(parent, temporary_name())
        return join(self.hidden[parent], path.rpartition("/")[2])


_LEAVE_OUT = "leave it out with exclude_glob or max_file_bytes, or work in a HostFilesystem"
_log = logging.getLogger(__name__)


@runtime_checkable
class Mountable(Protocol):
    """Copies folders of the host into the workspace."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, allowed_roots: HostRoots | None = None
    ) -> tuple[MountReport, ...]:
        """Copy several folders or files of the host, all or none."""
        ...


class HydratableFilesystem(MovableFilesystem):
    """A filesystem into which folders of the host can be copied."""

    def hydrate_from_host(
        self,
        mount: HostMount,
        *,
        allowed_roots: HostRoots | None = None,
        progress: ProgressListener | None = None,
    ) -> MountReport:
        """Copy a folder or file of the host into the workspace, or change nothing.

        Files that are there already are replaced, directories merge. Names and sizes
        are bound by the quota only.

        Args:
            mount: What is copied.
            allowed_roots: The directories below which it must be; None allows the
                current directory, an empty sequence nothing.
            progress: Told at every hundredth how far it is; what it raises stops the mount.

        Raises:
            PathEscapeError: The host path is below no allowed root.
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
        self._refuse_read_only("")
        with AllowedRoots(allowed_roots) as roots:
            copies = [MountCopy(MountPlan(mount, roots)) for mount in mounts]
            with self._lock:
                self._hydrate(copies, progress)
        return tuple(copy.report() for copy in copies)

    # --- shared steps that a backend may do better ---

    def _check_mounted(self, files: Iterable[MountedFile]) -> None:
        """Refuse a file that cannot be held; one that stores pieces as they come holds none."""
        for file in files:
            check_fits(file.path, file.size, file.size, self._limits, instead=_LEAVE_OUT)

    def _store_pieces(self, path: str, pieces: Iterator[bytes], *, permissions: int) -> None:
        """Create a large file from its bytes in order; nobody need hold them all at once."""
        self._store(path, b"".join(pieces), permissions=permissions)

    # --- shared steps ---

    def _hydrate(self, copies: Sequence[MountCopy], progress: ProgressListener | None) -> None:
        layout = Layout(self._lookup)
        for copy in copies:
            layout.add(copy.plan)
        if self._quota:
            self._quota.admit(*layout.growth())
        self._check_mounted(layout.files.values())
        try:
            self._build_mounts(copies, layout, progress)
            self._save_replaced(layout)
            fault_point("mount.built")
            self._show_mounts(layout)
        except OSError as error:
            raise layout.explained(error) from None
        finally:
            for hidden in layout.made:
                with suppress(OSError):  # nobody sees it; who comes across it removes it
                    self._remove(hidden)
        if self._listeners:
            self._tell_mounted(layout)

    def _build_mounts(
        self, copies: Sequence[MountCopy], layout: Layout, progress: ProgressListener | None
    ) -> None:
        """Copy everything to where nobody sees it."""
        for hidden in layout.hidden.values():
            self._make_directory(hidden)
            layout.made.append(hidden)
        for step in layout.directories:
            self._make_directory(step.hidden)
        meter = ProgressMeter(progress, len(layout.files), layout.total_bytes)

        def store(file: MountedFile, content: bytes | Iterator[bytes]) -> None:
            path = file.path
            if isinstance(content, bytes):
                self._store(layout.places[path], content, permissions=file.permissions)
            else:
                self._store_pieces(layout.places[path], content, permissions=file.permissions)
            if path in layout.singles:
                layout.singles[path].stored = True

        for copy in copies:
            wanted = [file for file in copy.plan.files if layout.files[file.path] is file]
            copy.run(wanted, store, meter)

    def _save_replaced(self, layout: Layout) -> None:
        """Copy what will be replaced, so that it can be put back."""
        for single in layout.singles.values():
            if single.stored and single.before is not None:
                single.before = self._description(single.before)
                single.saved = join(parent_of(single.hidden), temporary_name())
                self._copy_file(single.before, single.saved)

    def _show_mounts(self, layout: Layout) -> None:
        """Move everything into place, or nothing."""
        done: list[StagedEntry] = []
        try:
            for step in layout.steps():
                fault_point("mount.showing")
                self._move(step.hidden, step.path)
                done.append(step)
        except BaseException:
            for step in reversed(done):
                self._take_away(step)
            raise

    def _take_away(self, step: StagedEntry) -> None:
        """Undo a step, as far as that is possible."""
        try:
            if step.saved is None:
                self._remove(step.path)
            else:
                self._move(step.saved, step.path)
        except OSError as error:
            _log.warning("Could not take back %r after a mount failed: %s", step.path, error)

    def _tell_mounted(self, layout: Layout) -> None:
        made = {step.path for step in layout.directories}
        for path in sorted(made | layout.files.keys()):
            if path in made:
                self._listeners.tell(DirectoryCreated(path))
                continue
            found, single = self._lookup(path), layout.singles.get(path)
            if found is not None and (single is None or single.stored):
                before = None if single is None else single.before
                self._tell_written(path, found.size_bytes, "overwrite", before)
