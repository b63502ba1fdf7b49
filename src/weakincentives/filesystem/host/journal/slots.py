"""Slots: an entry is exchanged with a path, and what comes out is compared before it goes.

A path is never overwritten after a look. New content is staged in a slot, then slot and path
are exchanged (RENAME_EXCHANGE), so that the slot has whatever was at the path at that moment.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weakincentives.history.entries import (
    EntryState,
    Place,
    has_writer_at,
    hash_file,
    matches_at,
    read_state,
)
from weakincentives.history.rollback import kept_names
from weakincentives.posix import (
    copy_ownership,
    exchange,
    fault_point,
    hash_blob,
    os_error,
    rename,
    temporary_name,
    write_all,
)

Fill: TypeAlias = bytes | Callable[[int], None]
"""The content of a new file, or a function that writes it to a descriptor."""
NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
_TMPFILE = getattr(os, "O_TMPFILE", 0) | os.O_RDWR | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HAS_LABELS = Path("/sys/fs/selinux/enforce").exists()


class StagedFile(NamedTuple):
    """A new file in a slot, and whether something was at its path a moment ago."""

    state: EntryState
    inode: int
    replaces: bool


def stage_file(
    slot: Place,
    target: Place,
    fill: Fill,
    *,
    permissions: int | None,
    durable: bool,
    hashed: bool = True,
) -> "StagedFile":
    """Write a new file into a slot, as if it were created beside `target`.

    Without `permissions` it gets those of the file at `target`. Group, ACL and label are
    those that the directory of `target` gives to new files. Its state has a blob id if `hashed`.
    """
    descriptor, name = _create(slot, target[0])
    temporary = None if name is None else (target[0], name)
    try:
        try:
            fault_point("store.created")
            # before the content, which others may not be allowed to read
            is_there = copy_ownership(descriptor, *target, permissions)
            blob = _fill(descriptor, fill, hashed=hashed)
            fault_point("store.written")
            if durable:
                os.fsync(descriptor)
            found = os.fstat(descriptor)
            if name == "":
                link = f"/proc/self/fd/{descriptor}"
                os.link(link, slot[1], dst_dir_fd=slot[0], follow_symlinks=True)
        finally:
            os.close(descriptor)
        if name:
            os.rename(name, slot[1], src_dir_fd=target[0], dst_dir_fd=slot[0])
        fault_point("store.closed")
    except BaseException:
        for each in (temporary, slot):
            with suppress(OSError):
                if each and each[1]:
                    os.unlink(each[1], dir_fd=each[0])
        raise
    state = EntryState("file", stat.S_IMODE(found.st_mode), found.st_size, blob)
    return StagedFile(state, found.st_ino, is_there)


def _create(slot: Place, directory: int) -> tuple[int, str | None]:
    """Create a file: in the slot (None), without a name (""), or under a temporary name.

    The last two give it what new files inherit from `directory`.
    """
    if slot[0] == directory or not _gives_attributes(directory):
        return os.open(slot[1], _NEW_FILE, 0o666, dir_fd=slot[0]), None
    try:
        return os.open(".", _TMPFILE, 0o666, dir_fd=directory), ""
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    name = temporary_name()
    return os.open(name, _NEW_FILE, 0o666, dir_fd=directory), name


def _gives_attributes(directory: int) -> bool:
    """Return whether new files in a directory inherit its group, a default ACL or a label."""
    if _HAS_LABELS or os.fstat(directory).st_mode & stat.S_ISGID:
        return True
    try:
        return bool(os.getxattr(f"/proc/self/fd/{directory}", "system.posix_acl_default"))
    except (OSError, AttributeError):
        return False


def _fill(descriptor: int, fill: Fill, *, hashed: bool) -> str:
    """Write the content; return its git blob id, if that is wanted."""
    if isinstance(fill, bytes):
        write_all(descriptor, fill)
        return hash_blob(fill).hex() if hashed else ""
    fill(descriptor)
    if not hashed:
        return ""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return hash_file(descriptor) or ""


def swap(slot: Place, target: Place) -> None:
    """Exchange a slot with a path.

    Without RENAME_EXCHANGE the path is absent for a moment, but never overwritten.

    Raises:
        FileNotFoundError: Nothing is at the path.
    """
    try:
        exchange(slot, target)
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
        out = _out(slot)
        rename(target, out, exclusive=True)
        try:
            fault_point("journal.out")
            rename(slot, target, exclusive=True)
        except BaseException as reason:
            finish_swap(slot, target)
            if isinstance(reason, FileExistsError):
                text = "Saved by another program just now"
                raise os_error(errno.EBUSY, target[1], text) from None
            raise
        rename(out, slot)


def finish_swap(slot: Place, target: Place) -> None:
    """Finish or undo a `swap` that was interrupted half-way."""
    out = _out(slot)
    if not exists(out):
        return
    if not exists(slot):
        rename(out, slot)
        return
    try:
        rename(out, target, exclusive=True)
    except FileExistsError:
        keep(out, target)


def swap_if(slot: Place, target: Place, is_expected: Callable[[], bool]) -> bool:
    """Exchange; if what comes out is not as expected, put it back and return False.

    `is_expected` looks at the slot.

    Raises:
        FileNotFoundError: Nothing is at the path.
    """
    staged = read_state(slot)
    swap(slot, target)
    fault_point("journal.exchanged")
    if is_expected():
        return True
    put_back(slot, target, staged)
    return False


def put_back(slot: Place, target: Place, staged: EntryState) -> None:
    """Put back what came out, so that the latest save of somebody else is at the path.

    If something else than `staged` comes out on the way back, it was saved in between, and is
    put back in turn.
    """
    while True:
        out = read_state(slot)
        try:
            swap(slot, target)
        except FileNotFoundError:
            return  # removed in between
        fault_point("journal.returned")
        if matches_at(slot, staged):
            return
        staged = out


def keep(slot: Place, target: Place) -> str:
    """Rename an entry in a slot to a visible name beside its path; return the name."""
    names = kept_names(target[1])
    while True:
        name = next(names)
        with suppress(FileExistsError):
            rename(slot, (target[0], name), exclusive=True)
            fault_point("journal.kept")
            return name


def is_ours(slot: Place, states: "set[EntryState] | frozenset[EntryState]") -> bool:
    """Return whether a slot is exactly in one of these states, and no process writes to it."""
    found = stat_or_none(slot)
    if found is None:
        return False
    if stat.S_ISREG(found.st_mode) and has_writer_at(slot) is True:
        return False
    return any(matches_at(slot, each) for each in states)


def exists(place: Place) -> bool:
    """Return whether an entry is there."""
    return stat_or_none(place) is not None


def stat_or_none(place: Place) -> os.stat_result | None:
    """Return the metadata of an entry; None if there is none."""
    try:
        return os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    except FileNotFoundError:
        return None


def _out(slot: Place) -> Place:
    return slot[0], f"{slot[1]}.out"
