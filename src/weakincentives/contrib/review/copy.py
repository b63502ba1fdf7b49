"""Create a working copy: files, links, directories and permissions, and its base snapshot."""

import errno
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.contrib.review.environments import find_fixed_paths
from weakincentives.contrib.review.recovery import ensure_not_interrupted, open_original
from weakincentives.contrib.review.scan import Scan, leads_out
from weakincentives.contrib.review.transfer import write_entries
from weakincentives.contrib.review.views import PreservingFilesystem
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    FileStat,
    HostFilesystem,
    MountProgress,
    ReadableFilesystem,
    SkippedEntry,
    diff,
)
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.derived import CompletedFilesystem
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.mounts import ProgressMeter
from weakincentives.gitstore import Repository
from weakincentives.posix import os_error, parents_of, remove
from weakincentives.runtime.timeline import has_steps

MAX_FILES = 200_000
MAX_BYTES = 4 * 1024**3
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWNER_ACCESS = 0o700
_NO_METER = ProgressMeter(None, 0, 0)
_CACHES = ("wink-index", "wink-log")  # of a snapshot store; both are empty after gc
_log = logging.getLogger(__name__)


def working_copy(
    original: str | os.PathLike[str],
    *,
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[MountProgress], object] | None = None,
) -> records.WorkingCopy:
    """Copy a directory, and record its state for a later review.

    A savepoint that was interrupted in the original is rolled back first. Unreadable files,
    pipes and other special files are skipped and reported, and so is the `.git` file of a
    worktree, through which git would change the original. Virtual environments in the copy use
    the copy: absolute paths in their scripts and editable installs become relative.

    Args:
        original: The directory.
        place: A directory for the copy; by default a new one in the temporary
            directory. It may be inside the original only where `exclude` leaves it out.
        exclude: Globs of paths to leave out; one without `/` matches names at any depth.
        max_files: Limit of files, links and directories.
        max_bytes: Limit of the total size of the files.
        progress: Called with the progress; an exception from it cancels the copy.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or has a copy already.
        ApplyInterruptedError: An apply to the original was interrupted.
        LimitExceededError: The original is too large.
    """
    source = Path(os.path.realpath(original))
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a sequence of globs, not one: {exclude!r}")
    globs = tuple(exclude)
    with open_original(source, read_only=True) as opened:
        ensure_not_interrupted(opened, source)
    with HostFilesystem(source) as files, _pause_collector():
        scan = Scan(Side(files), globs, max_files, max_bytes, source, files)
        target = _create_place(place, source, globs)
        try:
            return _create_copy(
                scan, target, ProgressMeter(progress, scan.file_count, scan.total_bytes)
            )
        except BaseException:
            remove_copy(target)
            raise


def copy_of_states(
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    *,
    original: str | os.PathLike[str],
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
) -> tuple[records.WorkingCopy, list[SkippedEntry]]:
    """Return a working copy with the files of `after`, and what cannot be copied.

    A review compares with `before`, the state that was copied from the original at the time, so
    that changes which others made in the original since then are found. Derived files that are
    not recorded are copied from the original as they are now.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or has a copy already.
    """
    source = Path(os.path.realpath(original))
    if not source.is_dir():
        raise os_error(errno.ENOTDIR, str(source))
    globs = tuple(exclude)
    target = _create_place(place, source, globs)
    try:
        with HostFilesystem(source, read_only=True) as now:
            complete = Side(CompletedFilesystem(before, now))
            scan = Scan(complete, globs, sys.maxsize, sys.maxsize, source)
            copy = _create_copy(scan, target, _NO_METER)
        with records.open_files(copy) as files:
            return copy, write_changes(before, after, files)
    except BaseException:
        remove_copy(target)
        raise


def write_tree(source: ReadableFilesystem, target: PreservingFilesystem) -> list[SkippedEntry]:
    """Copy everything into an empty directory, unchanged; return what cannot be copied."""
    side = Side(source)
    skipped: list[SkippedEntry] = []
    entries = [each for _, found in side.directories("Restore") for each in found.values()]
    _put_all(target, entries, side, skipped, _NO_METER)
    return skipped


def remove_copy(place: Path) -> None:
    """Remove the files, record and snapshots of a copy, and its place if nothing else is there.

    Steps that are recorded beside the snapshots stay, with all files that they had.

    The files go first, at once: a copy that is removed half is not a copy.
    """
    history = records.history_path(place)
    paths = [records.workspace_path(place), records.record_path(place)]
    for path in paths if has_steps(history) else (*paths, history):
        with suppress(FileNotFoundError):
            remove_place(path)
    if has_steps(history):
        _forget_snapshots(history)
    with suppress(OSError):  # something of its owner is in it
        place.rmdir()


def _forget_snapshots(history: Path) -> None:
    """Keep only what the steps of a history need, which ignored files do not belong to."""
    try:
        repository = Repository.open(history)
        repository.prune([each.snapshot_id for each in repository.commits()])
        repository.gc()
        repository.close()
        for name in _CACHES:
            (history / name).unlink(missing_ok=True)
    except (SnapshotError, OSError) as error:
        _log.warning("Snapshots of a copy could not be removed: %s", error)


def remove_place(place: Path) -> None:
    """Remove a file or directory, whatever its permissions are."""
    directory = os.open(place.parent, _DIRECTORY_FLAGS)
    try:
        remove(directory, place.name)
    finally:
        os.close(directory)


@contextmanager
def _pause_collector() -> Generator[None, None, None]:
    """Look for no garbage meanwhile: thousands of new objects would set it off, and all stay."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _create_copy(scan: Scan, place: Path, meter: ProgressMeter) -> records.WorkingCopy:
    records.workspace_path(place).mkdir()
    with PreservingFilesystem(
        records.workspace_path(place), git_dir=records.history_path(place)
    ) as target:
        base = target.fill(lambda writer: write_entries(writer, scan, meter), tag="copied state")
    links = [(each.path, each.link_target) for each in scan.entries]
    record = records.CopyRecord(
        original=str(scan.root),
        base=base,
        exclude=scan.exclude,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        git_dirs=tuple(sorted(scan.git_dirs)),
        size_bytes=scan.total_bytes,
        fixed_paths=find_fixed_paths(scan.entries),
        external_links=tuple(
            sorted(path for path, to in links if to is not None and leads_out(path, to))
        ),
    )
    records.write_record(place, record)
    return records.open_copy(place)


def _put_all(
    target: PreservingFilesystem,
    entries: Sequence[FileStat],
    source: Side,
    skipped: list[SkippedEntry],
    meter: ProgressMeter,
) -> None:
    """Copy entries, each directory before its children; note what cannot be copied."""
    for found in entries:
        if found.kind == "special":
            skipped.append(SkippedEntry(found.path, "not a regular file"))
            continue
        try:
            target.put(found, source)
            if found.is_file and found.modified_at is not None:
                target.set_time(found.path, found.modified_at)
        except OSError as error:
            if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
                raise
            skipped.append(SkippedEntry(found.path, error.strerror or str(error)))
        meter.add(1, found.size_bytes)
    for found in reversed(entries):
        if found.is_directory:
            target.set_permissions(found.path, found.permissions)


def write_changes(
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    target: PreservingFilesystem,
    wants: Callable[[str], bool] = lambda _: True,
) -> list[SkippedEntry]:
    """Change the files in `target` from one state to another; return what cannot be copied.

    Only paths that `wants` selects are changed.
    """
    changes = [each for each in diff(before, after, renames=False).entries if wants(each.path)]
    side = Side(after)
    parents = {parent for change in changes for parent in parents_of(change.path)}
    for parent in sorted(parents):
        if target.exists(parent):  # the owner may have no access to it
            target.set_permissions(parent, target.stat(parent).permissions | _OWNER_ACCESS)
    for change in changes:
        is_kept = change.is_directory and change.before is not None and change.after is not None
        if not is_kept and target.exists(change.path):
            target.delete(change.path, recursive=True)
    new = [change.after for change in changes if change.after is not None]
    new.sort(key=lambda each: each.path.split("/"))
    skipped: list[SkippedEntry] = []
    added = [each for each in new if not (each.is_directory and target.exists(each.path))]
    _put_all(target, added, side, skipped, _NO_METER)
    for path in sorted({*parents, *(each.path for each in new)}, reverse=True):
        found = side.lookup(path)
        if found is not None and found.is_directory:
            target.set_permissions(path, found.permissions)
    return skipped


def _create_place(
    place: str | os.PathLike[str] | None, source: Path, exclude: tuple[str, ...]
) -> Path:
    """Create an empty directory for the copy, where it is not copied itself."""
    wanted = Path(tempfile.gettempdir() if place is None else place).absolute()
    if _is_copied(Path(os.path.realpath(wanted)), source, exclude):
        raise records.CopyError(
            f"The working copy must not be inside the original: {str(wanted)!r};"
            " choose another place"
        )
    if place is None:
        return Path(tempfile.mkdtemp(prefix="wink-run-", dir=wanted))
    wanted.mkdir(0o700, parents=True, exist_ok=True)
    history = records.history_path(wanted)
    is_taken = os.path.lexists(history) and not has_steps(history)
    if is_taken or os.path.lexists(records.workspace_path(wanted)):
        raise records.CopyError(f"The place has a working copy already: {str(wanted)!r}")
    return wanted


def _is_copied(path: Path, source: Path, exclude: tuple[str, ...]) -> bool:
    """Return whether a path is the source or below it, and not excluded."""
    if not path.is_relative_to(source):
        return False
    inside = path.relative_to(source)
    wanted = records.exclusion_filter(exclude)
    return all(wanted.wants(str(each)) for each in (inside, *inside.parents) if each.parts)
