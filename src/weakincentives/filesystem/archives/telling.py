"""Errors of the system that say which archive they are about."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from weakincentives.errors import WinkError
from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.paths import os_error


@contextmanager
def about(archive: Path) -> Generator[None, None, None]:
    """Let errors that name nothing, or what nobody sees, name the archive."""
    try:
        yield
    except OSError as error:
        is_told = error.filename is not None and not is_temporary(os.fsdecode(error.filename))
        if is_told or isinstance(error, WinkError):
            raise
        raise os_error(error.errno or errno.EIO, str(archive), error.strerror or "") from error
