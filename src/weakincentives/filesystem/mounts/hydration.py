"""Copying host folders into a workspace: all of it or nothing.

Everything is built out of sight first; whatever fails until then leaves no trace.
What remains is to move it into place: one step for a directory that is new, one for
each file in a directory that is there. If one of these fails, the others are undone.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from weakincentives.filesystem.events import DirectoryCreated
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import temporary_name
from weakincentives.filesystem.memory import check_fits
from weakincentives.filesystem.mounts.copying import MountCopy
from weakincentives.filesystem.mounts.layout import Layout, Step
from weakincentives.filesystem.mounts.plan import MountedFile, MountPlan
from weakincentives.filesystem.mounts.report import Meter, MountReport, ProgressListener
from weakincentives.filesystem.mounts.request import HostMount
from weakincentives.filesystem.mounts.roots import AllowedRoots, HostRoots
from weakincentives.filesystem.movable import MovableFilesystem
from weakincentives.filesystem.paths import join, parent_of

_LEAVE_OUT = "leave it out with exclude_glob or max_file_bytes, or work in a HostFilesystem"

_log = logging.getLogger(__name__)


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
            reached("mount.built")
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
        meter = Meter(progress, len(layout.files), layout.total_bytes)

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
        done: list[Step] = []
        try:
            for step in layout.steps():
                reached("mount.showing")
                self._move(step.hidden, step.path)
                done.append(step)
        except BaseException:
            for step in reversed(done):
                self._take_away(step)
            raise

    def _take_away(self, step: Step) -> None:
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
