"""Access below one directory that nothing can lead out of.

No path is checked and then used by name. The root is opened once; everything else is
opened relative to it in one step that refuses symbolic links (`openat2`), or, where
the kernel has no such call, segment by segment from descriptor to descriptor. What
is opened is what was checked, whatever others rename meanwhile.
"""

import ctypes
import errno
import os
import stat
import sys
import weakref
from pathlib import Path

from weakincentives.errors import WinkError
from weakincentives.posix.paths import os_error

O_PATH: int = getattr(os, "O_PATH", os.O_RDONLY)
HAS_PROC = Path("/proc/self/fd").is_dir()
_PIN = O_PATH | os.O_CLOEXEC
_NONBLOCKING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_SIZE = 1024 * 1024
_OPENAT2 = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_AT_FDCWD = -100
_MAX_PATH = 4_000  # bytes that the kernel takes in one call, less a margin
_MAX_STEPS = 1_000  # segments and links in the path of a root
_RETRIES = 32  # openat2 answers EAGAIN while somebody renames directories
_PINNING = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # holds on to a file without opening it
_PASSING = O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # a directory on the way
_LISTED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_CONNECTED = frozenset({errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ESHUTDOWN})
_IS_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


class _How(ctypes.Structure):
    """`struct open_how` of the kernel."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class BackendUnavailableError(WinkError, RuntimeError):
    """The workspace itself is not there any more, so nothing can be said about its files."""


class RootedDirectory:
    """A directory and what is below it; links are never followed."""

    def __init__(self, path: Path, *, cross_mounts: bool = False, kernel: bool = True) -> None:
        """Open `path`; enter other mounts if asked to.

        `kernel=False` opens segment by segment, as on kernels without `openat2`.
        """
        self._path = path
        self.descriptor: int = _open_root(path, kernel=kernel)
        self._finalizer = weakref.finalize(self, os.close, self.descriptor)
        self._device = None if cross_mounts else os.fstat(self.descriptor).st_dev
        self._resolve = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
        self._resolve |= 0 if cross_mounts else _NO_XDEV
        self._kernel = kernel and _kernel_has_openat2(self.descriptor)
        self._hows: dict[int, _How] = {}

    @property
    def crosses_mounts(self) -> bool:
        """Whether other file systems that are mounted below are entered."""
        return self._device is None

    def close(self) -> None:
        """Close the root; closing twice is harmless."""
        self._finalizer()
        self.descriptor = -1  # the number may be given to another file

    def check(self) -> None:
        """Return if the directory is there.

        Raises:
            BackendUnavailableError: It has been removed, with or without another in its place.
        """
        _refuse_removed(os.fstat(self.descriptor), self._path)

    def explain_error(self, error: OSError, path: str) -> Exception:
        """Return the reason why something failed, with the workspace path.

        Raises:
            BackendUnavailableError: Nothing is at `path` because the whole directory is gone.
        """
        if error.errno == errno.ENOENT:
            self.check()
        if error.errno in _NOT_CONNECTED:
            return _unavailable(f"Directory is not available ({error.strerror})", self._path)
        return explain_error(error, path)

    def open_directory(self, path: str) -> int:
        """Open a directory for listing."""
        if not path:
            self.check()  # one that was removed can be opened, and has nothing in it
        return self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)

    def is_directory(self, path: str) -> bool:
        """Return whether a directory is there, in one step."""
        try:
            os.close(self._open(path or ".", _PASSING))
        except OSError:
            return False
        return True

    def open_parent(self, path: str) -> tuple[int, str]:
        """Open the directory that holds `path`; return it with the last segment."""
        parent, _, name = path.rpartition("/")
        _encoded(name)
        return self._open(parent or ".", O_PATH | os.O_DIRECTORY), name

    def open_file(self, path: str) -> tuple[int, os.stat_result]:
        """Open a regular file for reading; nothing else is ever opened.

        Raises:
            PermissionError: A pipe, socket, device or link is there.
        """
        if not HAS_PROC:
            return self._open_file_by_name(path)
        return open_pinned(self._open(path, O_PATH), path)

    def open_entry(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Open a regular file in an open directory below the root; as `open_file`."""
        encoded = _encoded(name)
        if not HAS_PROC:
            return self._open_by_name(directory, name)
        if self._kernel:
            return open_pinned(self._open_at_once(directory, encoded, _PINNING), name)
        return open_pinned(self._step(encoded, _PINNING, directory), name)

    def lstat(self, path: str) -> tuple[os.stat_result, str | None]:
        """Return the metadata of what is at `path`, and where it points if it is a link."""
        if not path:
            found = os.fstat(self.descriptor)
            _refuse_removed(found, self._path)
            return found, None
        parent, name = self.open_parent(path)
        try:
            return _stat_and_target(parent, name)
        finally:
            os.close(parent)

    def _open_file_by_name(self, path: str) -> tuple[int, os.stat_result]:
        parent, name = self.open_parent(path)
        try:
            return self._open_by_name(parent, name)
        finally:
            os.close(parent)

    def _open_by_name(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Without /proc: look, open without waiting, and look again at what was opened."""
        check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), name)
        descriptor = self._step(_encoded(name), _LISTED, directory)
        try:
            return descriptor, check_regular(os.fstat(descriptor), name)
        except OSError:
            os.close(descriptor)
            raise

    def _open(self, path: str, flags: int) -> int:
        encoded = _encoded(path)
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        if not self._kernel:
            return self._open_by_steps(self.descriptor, encoded, flags)
        if len(encoded) <= _MAX_PATH:
            return self._open_at_once(self.descriptor, encoded, flags)
        return self._open_far(encoded, flags)

    def _open_at_once(self, directory: int, path: bytes, flags: int) -> int:
        for _ in range(_RETRIES):
            descriptor = _openat2(directory, path, self._how(flags))
            if descriptor >= 0:
                return descriptor
            if descriptor != -errno.EAGAIN:
                raise os_error(-descriptor, os.fsdecode(path))
        return self._open_by_steps(directory, path, flags)

    def _open_far(self, path: bytes, flags: int) -> int:
        """Open a path that is longer than the kernel takes, in as few parts as possible."""
        current = os.dup(self.descriptor)
        try:
            while len(path) > _MAX_PATH:
                cut = path.rindex(b"/", 0, _MAX_PATH) if b"/" in path[:_MAX_PATH] else len(path)
                deeper = self._open_at_once(current, path[:cut], _PASSING)
                os.close(current)
                current, path = deeper, path[cut + 1 :]
            return self._open_at_once(current, path, flags)
        finally:
            os.close(current)

    def _how(self, flags: int) -> _How:
        how = self._hows.get(flags)
        if how is None:
            how = self._hows[flags] = _How(flags, 0, self._resolve)
        return how

    def _open_by_steps(self, directory: int, path: bytes, flags: int) -> int:
        *parents, name = path.split(b"/")
        current = os.dup(directory)
        try:
            for segment in parents:
                deeper = self._step(segment, _PASSING, current)
                os.close(current)
                current = deeper
            return self._step(name, flags, current)
        finally:
            os.close(current)

    def _step(self, segment: bytes, flags: int, directory: int) -> int:
        descriptor = os.open(segment, flags, dir_fd=directory)
        if self._device is not None and os.fstat(descriptor).st_dev != self._device:
            os.close(descriptor)
            raise os_error(errno.EXDEV, os.fsdecode(segment))
        return descriptor


def _refuse_removed(found: os.stat_result, path: Path) -> None:
    if not found.st_nlink:
        raise _unavailable("Directory has been removed", path)


def _unavailable(reason: str, path: Path) -> BackendUnavailableError:
    return BackendUnavailableError(f"{reason}, so make it again and open it anew: {str(path)!r}")


def explain_error(error: OSError, path: str) -> OSError:
    """Return the error with the workspace path, and a reason where the kernel gives none."""
    if error.errno == errno.EXDEV:
        text = "On another file system, which is entered only with cross_mounts=True"
        return os_error(errno.EPERM, path, text)
    if error.errno == errno.ELOOP:
        return os_error(errno.EPERM, path, "Symbolic links are not followed")
    return os_error(error.errno or errno.EIO, path, error.strerror or "")


def _stat_and_target(directory: int, name: str) -> tuple[os.stat_result, str | None]:
    for _ in range(_RETRIES):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return found, None
        try:
            return found, os.readlink(name, dir_fd=directory)
        except OSError as error:
            if (
                error.errno != errno.EINVAL
            ):  # no link any more: somebody has put another thing there
                raise
    raise os_error(errno.ENOENT, name)


def read_range(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes from `offset`, fewer only where the file ends."""
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _open_root(path: Path, *, kernel: bool) -> int:
    if "\0" in str(path):
        raise ValueError(f"Root holds a NUL character: {str(path)!r}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if kernel:
        how = _How(flags, 0, _NO_MAGICLINKS)
        descriptor = _openat2(_AT_FDCWD, os.fsencode(path), how)
        if descriptor >= 0:
            return descriptor
    if _leads_through_proc(path):
        raise os_error(errno.EPERM, str(path), "Root leads through a link that the kernel makes up")
    return os.open(path, flags)


def _leads_through_proc(path: Path) -> bool:
    """Return whether a link on the way lies in /proc, where links are not what they say."""
    pending = list(reversed(path.absolute().parts))
    here = Path(pending.pop())
    for _ in range(_MAX_STEPS):
        if not pending:
            return False
        here = here.parent if pending[-1] == ".." else here / pending[-1]
        pending.pop()
        if here.is_symlink():
            if here.is_relative_to("/proc"):
                return True
            target = here.readlink()
            here = Path("/") if target.is_absolute() else here.parent
            pending += [part for part in reversed(target.parts) if part != "/"]
    return True


def _kernel_has_openat2(descriptor: int) -> bool:
    flags = O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    probe = _openat2(descriptor, b".", _How(flags, 0, _NO_SYMLINKS | _BENEATH))
    if probe < 0:
        return False
    os.close(probe)
    return True


def _openat2(directory: int, path: bytes, how: _How) -> int:
    """Return a descriptor, or the error number made negative."""
    if not _IS_LINUX:
        return -errno.ENOSYS
    descriptor = _syscall(_OPENAT2, directory, path, ctypes.addressof(how), ctypes.sizeof(how))
    return descriptor if descriptor >= 0 else -ctypes.get_errno()


def _encoded(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise os_error(errno.ENOENT, path) from None  # no such name can be on disk


def open_regular(
    path: str | os.PathLike[str], *, follow_links: bool = False
) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor and its metadata.

    Links are for those who named the file themselves: with `follow_links` a link to a
    regular file will do. A file that was found is never followed to another place.

    Raises:
        PermissionError: A link, directory, pipe, socket or device is there.
        OSError: The file cannot be opened.
    """
    flags = 0 if follow_links else os.O_NOFOLLOW
    name = os.fspath(path)
    try:
        if HAS_PROC:
            return open_pinned(os.open(name, _PIN | flags), name)
        return _open_by_name(name, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise _refusal(name) from None
        raise


def read_regular(
    path: str | os.PathLike[str], max_bytes: int, *, follow_links: bool = False
) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises:
        PermissionError: A link, directory, pipe, socket or device is there; see `open_regular`.
        OSError: The file cannot be read, or is larger, which is noticed before it is read.
    """
    descriptor, found = open_regular(path, follow_links=follow_links)
    try:
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        pieces: list[bytes] = []
        room = max_bytes + 1  # it may grow meanwhile
        while room > 0 and (piece := os.read(descriptor, min(_CHUNK_SIZE, room))):
            pieces.append(piece)
            room -= len(piece)
    finally:
        os.close(descriptor)
    if room <= 0:
        raise _too_large(path, max_bytes)
    return b"".join(pieces)


def open_pinned(pinned: int, path: str) -> tuple[int, os.stat_result]:
    """Open the file that the descriptor `pinned` holds on to, if it is regular; close `pinned`."""
    try:
        found = check_regular(os.fstat(pinned), path)
        return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_CLOEXEC), found
    except OSError as error:
        # the kernel names the descriptor, which says nothing to anybody
        raise os_error(error.errno or errno.EIO, path, error.strerror or "") from None
    finally:
        os.close(pinned)


def check_regular(found: os.stat_result, path: str) -> os.stat_result:
    """Return `found` if it is of a regular file; PermissionError if not."""
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(path)
    return found


def _open_by_name(path: str, flags: int) -> tuple[int, os.stat_result]:
    """Without /proc: look, open without waiting, and look again at what was opened."""
    check_regular(Path(path).stat(follow_symlinks=not flags), path)
    descriptor = os.open(path, _NONBLOCKING | flags)
    try:
        return descriptor, check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise


def _refusal(path: str) -> OSError:
    return os_error(errno.EPERM, path, "Not a regular file")


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> OSError:
    return os_error(errno.EFBIG, os.fspath(path), f"Larger than {max_bytes:,} bytes")
