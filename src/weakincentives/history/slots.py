"""Slots: an entry is exchanged with a path, and what comes out is compared before it goes.

A path is never overwritten after a look. New content is staged in a slot, then slot and path
are exchanged (RENAME_EXCHANGE), so that the slot has whatever was at the path at that moment.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weakincentives.history.entries import (
    MISSING,
    EntryState,
    Place,
    hash_content,
    hash_file,
    is_written,
    matches_at,
    open_file,
    read_attributes_at,
    read_state,
    resembles,
    set_attributes,
    stat_at,
)
from weakincentives.posix import (
    OpenDescriptor,
    copy_ownership,
    exchange,
    fault_point,
    rename,
    temporary_name,
    write_all,
)

Fill: TypeAlias = bytes | Callable[[int], None]
"""The content of a new file, or a function that writes it to a descriptor."""
_MAX_ROUNDS = 10  # to give a path back to somebody who keeps saving
_MAX_NAME_BYTES = 200  # bytes of a name that leave room for an addition
_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
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
) -> StagedFile:
    """Write a new file into a slot, as if it were created beside `target`.

    It gets the extended attributes of the file at `target`, and its permissions unless others are
    given. Its state has a blob id if `hashed`.
    """
    descriptor = create_file(slot, target[0], 0o666)
    try:
        with OpenDescriptor(descriptor):
            fault_point("store.created")
            # before the content, which others may not be allowed to read
            is_there = copy_ownership(descriptor, *target, permissions)
            if is_there:
                set_attributes(descriptor, read_attributes_at(target, strict=True))
            blob = _fill(descriptor, fill, hashed=hashed)
            fault_point("store.written")
            if durable:
                os.fsync(descriptor)
            found = os.fstat(descriptor)
        fault_point("store.closed")
    except BaseException:
        with suppress(OSError):
            os.unlink(slot[1], dir_fd=slot[0])
        raise
    state = EntryState("file", stat.S_IMODE(found.st_mode), found.st_size, blob)
    return StagedFile(state, found.st_ino, is_there)


def create_file(slot: Place, directory: int, mode: int) -> int:
    """Create an empty file in a slot, and open it.

    Group, ACL and label are those that `directory` gives to new files.
    """
    if slot[0] != directory and _gives_attributes(directory):
        # where that is not supported, or the directory may not be written, it is a plain file
        with suppress(OSError):
            return _create_inside(slot, directory, mode)
    return os.open(slot[1], _NEW_FILE, mode, dir_fd=slot[0])


def _create_inside(slot: Place, directory: int, mode: int) -> int:
    """Create a file in a directory, and move it into a slot."""
    name = ""
    try:
        descriptor = os.open(".", _TMPFILE, mode, dir_fd=directory)
    except OSError:
        name = temporary_name()
        descriptor = os.open(name, _NEW_FILE, mode, dir_fd=directory)
    try:
        if name:
            os.rename(name, slot[1], src_dir_fd=directory, dst_dir_fd=slot[0])
        else:
            link = f"/proc/self/fd/{descriptor}"
            os.link(link, slot[1], dst_dir_fd=slot[0], follow_symlinks=True)
    except BaseException:
        os.close(descriptor)
        if name:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
        raise
    return descriptor


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
        return hash_content(len(fill), [fill]) if hashed else ""
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
        FileExistsError: Somebody saved in that moment; what was there before is kept beside it.
    """
    try:
        exchange(slot, target)
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        out = _out(slot)
        rename(target, out, exclusive=True)
        try:
            fault_point("slot.out")
            rename(slot, target, exclusive=True)
        except BaseException:
            finish_swap(slot, target)
            raise
        rename(out, slot)


def carry_attributes(slot: Place, target: Place) -> None:
    """Give a file at its path what somebody set on the one that came out, after it was staged."""
    given = read_attributes_at(slot)
    if not given or given == read_attributes_at(target):
        return
    try:
        with open_file(target) as descriptor:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                set_attributes(descriptor, given)
    except OSError as error:
        if error.errno not in MISSING:  # somebody has removed or replaced it
            raise


def finish_swap(slot: Place, target: Place) -> str:
    """Finish or undo a `swap` that was interrupted half-way.

    Return under which name the entry before is kept, if somebody has saved since.
    """
    out = _out(slot)
    if not exists(out):
        return ""
    if not exists(slot):
        rename(out, slot)
        return ""
    try:
        rename(out, target, exclusive=True)
    except FileExistsError:
        return keep(out, target)
    return ""


def give_back(slot: Place, target: Place, placed: EntryState) -> bool:
    """Return what is in a slot to its path, where `placed` was put in its stead.

    Somebody may save meanwhile, again and again: the path ends with the newest save, and the slot
    with what it replaced. Return False if the path was removed meanwhile. It gives up after some
    rounds: then the path has the latest save, and the slot one before it.
    """
    for _ in range(_MAX_ROUNDS):
        saved = read_state(slot)
        try:
            swap(slot, target)
        except FileNotFoundError:
            return False
        fault_point("rollback.returned")
        if matches_at(slot, placed):
            return True
        placed = saved
    return True


def keep(slot: Place, target: Place) -> str:
    """Rename an entry in a slot to a visible name beside its path; return the name."""
    names = kept_names(target[1])
    while True:
        name = next(names)
        with suppress(FileExistsError):
            rename(slot, (target[0], name), exclusive=True)
            fault_point("rollback.kept")
            return name


def kept_names(name: str) -> Iterator[str]:
    """Yield the names under which a version of `name` can be kept beside it."""
    short = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
    yield f"{short}.wink-kept"
    for number in count(2):
        yield f"{short}.wink-kept-{number}"


def is_ours(slot: Place, state: EntryState) -> bool:
    """Return whether a slot is exactly in a state, and no process is known to write to it."""
    found = stat_or_none(slot)
    if state.kind != "file" or found is None or not resembles(found, state):
        return state.kind != "file" and matches_at(slot, state)
    with open_file(slot) as descriptor:
        return is_written(descriptor) is not True and hash_file(descriptor) == state.blob


def exists(place: Place) -> bool:
    """Return whether an entry is there."""
    return stat_or_none(place) is not None


def stat_or_none(place: Place) -> os.stat_result | None:
    """Return the metadata of an entry; None if there is none."""
    try:
        return stat_at(place)
    except FileNotFoundError:
        return None


def _out(slot: Place) -> Place:
    return slot[0], f"{slot[1]}.out"
