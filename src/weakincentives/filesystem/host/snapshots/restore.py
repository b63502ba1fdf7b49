"""Restore of a host directory through the change engine, and its recovery after a crash."""

import errno
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from weakincentives.errors import (
    SnapshotError,
    SnapshotRestoreError,
    StaleRestoreError,
    WinkError,
)
from weakincentives.filesystem.host.snapshots.edits import is_within
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem, open_blob
from weakincentives.filesystem.text import Content
from weakincentives.gitstore import ObjectError
from weakincentives.history import (
    ChangeConflictError,
    ChangeRequest,
    ChangeResult,
    Edit,
    KeepDisplaced,
    Policy,
    RecordError,
    change,
    find_changes,
    find_stale,
    recover_change,
    remove_abandoned,
)
from weakincentives.history.entries import LiveTree, matches
from weakincentives.posix import (
    MountPoints,
    RootedDirectory,
    display_path,
    is_hidden,
    os_error,
    parent_of,
    shorten_path,
)

KIND = "restore"
"""The kind of these changes in their records."""
_log = logging.getLogger(__name__)


def restore_edits(
    directory: RootedDirectory,
    edits: Sequence[Edit],
    target: SnapshotFilesystem,
    *,
    on_conflict: Policy,
    durable: bool,
    keep: KeepDisplaced,
) -> ChangeResult:
    """Carry out edits whose new content is in `target`: all of them or none.

    Raises:
        StaleRestoreError: A path is not as expected, and the policy is to refuse.
        OSError: The disk failed, or a mount or a directory of somebody else is in the way.
    """
    _check_edits(directory, edits)
    blobs = {each.path: each.after.blob for each in edits}

    def open_content(path: str) -> Content:
        try:
            return open_blob(target.objects, blobs[path])
        except ObjectError as error:
            name = display_path(shorten_path(path))
            raise ObjectError(f"{name!r} cannot be restored: {error}") from error

    request = ChangeRequest(
        edits, open_content, kind=KIND, on_conflict=on_conflict, durable=durable
    )
    try:
        return change(directory, request, keep=keep)
    except ChangeConflictError as error:
        stale = {error.path, *find_stale(directory, edits)}
        raise StaleRestoreError(sorted(map(display_path, stale))) from error


def drop_done(
    directory: RootedDirectory, edits: Sequence[Edit], paths: Sequence[str] | None = None
) -> list[Edit]:
    """Return the edits that are left: the others have happened already.

    Directories above `paths` need only be there.
    """
    tree = LiveTree(directory)

    def is_done(edit: Edit) -> bool:
        if paths is not None and not is_within(edit.path, paths) and tree.is_directory(edit.path):
            return True
        return matches(tree, edit.path, edit.after)

    try:
        return [each for each in edits if not is_done(each)]
    finally:
        tree.close()


def has_interrupted(directory: RootedDirectory) -> bool:
    """Return whether a restore was interrupted by a crash, or could not be rolled back."""
    return any(each.record.kind == KIND and not each.is_running for each in find_changes(directory))


def recover_restores(directory: RootedDirectory, root: str) -> None:
    """Finish what restores of dead processes have left; later saves are left alone.

    Raises:
        SnapshotRestoreError: That failed; the next recovery tries again.
    """
    try:
        remove_abandoned(directory)
        for pending in find_changes(directory):
            if pending.record.kind == KIND and not pending.is_running:
                if not pending.is_done:
                    _log.warning("Finishing an interrupted restore: %r", root)
                for each in recover_change(directory, pending).kept:
                    _log.warning("%s", each)
    except (OSError, RecordError) as error:
        raise SnapshotRestoreError(
            f"Failed to restore: an interrupted restore of {root!r} cannot be finished"
            f" ({error}); fix that, or open the directory with read_only=True"
        ) from error


def check_recovered(directory: RootedDirectory, root: str) -> None:
    """Raise SnapshotError if a restore was interrupted, and this may not recover it."""
    if has_interrupted(directory):
        raise SnapshotError(
            f"An interrupted restore must be finished first: open for writing {root!r}"
        )


def usage_change(edits: Sequence[Edit], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many bytes and entries more there are after edits; `sizes` are those of blobs."""
    size = count = 0
    for edit in edits:
        size += sizes.get(edit.after.blob, 0) - sizes.get(edit.before.blob, 0)
        count += (edit.after.kind != "absent") - (edit.before.kind != "absent")
    return size, count


def explain_store_error(error: Exception, root: str, git_dir: Path) -> Exception:
    """Return an error that names a place, unless `error` names a visible one."""
    if not isinstance(error, OSError) or isinstance(error, WinkError):
        return error
    name = "" if error.filename is None else os.fsdecode(error.filename)
    if name and not name.startswith("/proc/") and not is_hidden(name):
        return error
    text = f"{error.strerror or 'Failed'} in the workspace, or in its store {git_dir}"
    return os_error(error.errno or errno.EIO, root, text)


def _check_edits(directory: RootedDirectory, edits: Sequence[Edit]) -> None:
    """Check that no mount point and no directory of another user has to change.

    Raises:
        OSError: One has.
    """
    points = MountPoints(directory)
    for edit in edits:
        point = None if edit.before.kind == "absent" else points.find_below(edit.path)
        if point is not None and edit.after.kind != "directory":
            raise os_error(errno.EBUSY, point, "Another file system is mounted here")
    new = {each.path for each in edits if each.before.kind == "absent"}
    for parent in sorted({parent_of(each.path) for each in edits} - new):
        try:
            found, _ = directory.lstat(parent)
        except OSError:
            continue  # one that cannot be reached is made accessible, or is a conflict
        if not _may_change(found):
            raise os_error(errno.EPERM, parent, "Directory belongs to another user")


def _may_change(found: os.stat_result) -> bool:
    user = os.geteuid()
    if not user or found.st_uid == user:
        return True
    in_group = found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if in_group else 0)))
