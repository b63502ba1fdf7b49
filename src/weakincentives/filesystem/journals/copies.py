"""Copies of single entries, for where neither a hard link nor a rename is possible."""

import errno
import os
import stat

from weakincentives.filesystem import staging
from weakincentives.filesystem.journals.places import Place
from weakincentives.filesystem.paths import os_error
from weakincentives.filesystem.rooted import RootedDirectory


def copy_entry(root: RootedDirectory, source: Place, target: Place) -> None:
    """Copy a file or link; a file or link that is at the target goes.

    Raises:
        OSError: It is something else, or the disk failed.
    """
    directory, name = source
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        staging.make_link(*target, os.readlink(name, dir_fd=directory))
        return
    if not stat.S_ISREG(found.st_mode):
        raise os_error(errno.EPERM, name, "Only files and links can be kept on this file system")
    opened, _ = root.open_listed(directory, name)
    try:
        staging.store_file(
            *target,
            lambda descriptor: staging.copy_all(opened, descriptor),
            permissions=found.st_mode & 0o777,
        )
    finally:
        os.close(opened)
    times = (found.st_atime_ns, found.st_mtime_ns)
    os.utime(target[1], ns=times, dir_fd=target[0], follow_symlinks=False)
