"""Removal of working copies: all of one at once, and only where nobody works in it."""

import logging
import stat
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.filesystem.base import is_tool_output
from weakincentives.gitstore import Repository
from weakincentives.history import LiveTree, has_writer_at, read_attributes, user_attributes
from weakincentives.posix import RootedDirectory, display_path, fault_point, open_directory, remove
from weakincentives.runtime.timeline import has_steps

_ASIDE = "aside"  # the files of a copy that is about to be removed
_CACHES = ("wink-index", "wink-log")  # of a snapshot store; both are empty after gc
_log = logging.getLogger(__name__)


def find_attributes(root: Path, *, unless_open: bool = False) -> frozenset[str]:
    """Return the entries of a copy that have extended attributes of a user's programs.

    At first none has, and no snapshot has them: they are lost with the copy.

    Args:
        root: The copy.
        unless_open: Look for writers in the same walk; only leases of the kernel show them.

    Raises:
        CopyInUseError: A program has a file open for writing.
    """
    marked: set[str] = set()
    with closing(RootedDirectory(root)) as opened, closing(LiveTree(opened)) as tree:
        for name, _ in tree.names(""):
            for path, found in tree.walk(name):
                is_file = unless_open and stat.S_ISREG(found.st_mode)
                if is_file and has_writer_at(tree.open_parent(path)):
                    fact = f"a program has {display_path(path)} open for writing"
                    raise records.CopyInUseError(fact)
                if user_attributes(read_attributes(tree, path)):
                    marked.add(path)
    return frozenset(marked)


def remove_unused(
    copy: records.WorkingCopy,
    files: HostFilesystem,
    seen: FilesystemSnapshot,
    *,
    attributes: frozenset[str] = frozenset(),
) -> None:
    """Remove the files of a copy if they are as they were seen and no program works with them.

    The last look comes after the copy has left its path: what is saved by its path then is seen,
    or fails. A program that has a file open for writing could save in it later. `seen` is the last
    state of `files`, and `attributes` are those that had extended attributes then.
    """
    with set_aside(copy.place) as aside:
        fault_point("copy.aside")
        marked = find_attributes(aside, unless_open=_has_leases(copy.place)) - attributes
        files.invalidate()
        now = files.snapshot(tag="before removal")
        for path in files.compare(seen, now):
            if not is_tool_output(path):
                raise records.CopyInUseError(f"{display_path(path)} was changed meanwhile")
        for path in sorted(marked):
            fact = f"only the copy has the extended attributes of {display_path(path)}"
            raise records.CopyInUseError(fact)
    remove_place(aside)


@contextmanager
def set_aside(place: Path) -> Generator[Path]:
    """Move the files of a copy away from their path; after an error they are moved back."""
    aside = place / _ASIDE
    records.workspace_path(place).rename(aside)
    try:
        yield aside
    except BaseException:
        aside.rename(records.workspace_path(place))
        raise


def take_back(place: Path) -> None:
    """Move the files of a copy back that a kill left aside."""
    aside = place / _ASIDE
    if aside.is_dir():
        with suppress(OSError):  # another process was faster
            aside.rename(records.workspace_path(place))


def _has_leases(place: Path) -> bool:
    """Return whether the kernel grants leases there, as it does for a file that nobody writes."""
    with open_directory(place) as directory:
        return has_writer_at((directory, records.record_path(place).name)) is False


def remove_copy(place: Path) -> None:
    """Remove the files, record and snapshots of a copy, and its place if nothing else is there.

    Steps that are recorded beside the snapshots stay, with all files that they had.

    The files go first, at once: a copy that is removed half is not a copy.
    """
    history, has_history = records.history_path(place), has_steps(records.history_path(place))
    record = records.find_record(place) if has_history else None
    others = () if has_history else (history,)
    if record is None:
        others = (records.record_path(place), *others)
    for path in (records.workspace_path(place), *others):
        with suppress(FileNotFoundError):
            remove_place(path)
    if record is not None:
        records.write_record(place, replace(record, copy=None, applied=(), changes=None))
    if has_history:
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
    with open_directory(place.parent) as directory:
        remove(directory, place.name)
