"""Confined file access: nothing is opened outside one root, and nothing but regular files.

There is no TOCTOU gap: no path is checked and then used by name. The root is opened once.
Everything else is opened relative to it, in one `openat2` call that rejects symbolic links, or,
on kernels without it, segment by segment from descriptor to descriptor. Whatever others rename
meanwhile, the file that was checked is the file that is opened.

`open_regular` and `read_regular` open a file by its path: a configuration, a record, a recording.
Such a file may have been replaced by a pipe, a device or a huge file. It is pinned with `O_PATH`,
checked, and opened only if it is regular: nothing blocks on a pipe and no device is touched.

`MountPoints` finds the mounts below a root: a rename cannot cross from one file system to another.
"""

import ctypes
import errno
import os
import re
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

from weakincentives.errors import WinkError
from weakincentives.posix.descriptors import OpenDescriptor
from weakincentives.posix.paths import os_error, parents_of

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
_MAX_RETRIES = 32  # openat2 returns EAGAIN while directories are being renamed
_PIN_NOFOLLOW = O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_TRAVERSE = O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ENTRY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
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
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_MOUNT_POINT = 4  # the field of a mountinfo line


class _OpenHow(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class BackendUnavailableError(WinkError, RuntimeError):
    """The workspace directory itself is gone, so the state of its files is unknown."""


class RootedDirectory:
    """A directory tree; symbolic links are never followed."""

    def __init__(self, path: Path, *, cross_mounts: bool = False, kernel: bool = True) -> None:
        """Open `path` as the root.

        Args:
            path: The directory.
            cross_mounts: Enter other file systems that are mounted below it.
            kernel: Use `openat2` where the kernel has it; else open segment by segment.
        """
        self._path = path
        self.descriptor: int = _open_root(path, kernel=kernel)
        self._finalizer = weakref.finalize(self, os.close, self.descriptor)
        self._device = None if cross_mounts else os.fstat(self.descriptor).st_dev
        self._resolve = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
        self._resolve |= 0 if cross_mounts else _NO_XDEV
        self._kernel = kernel and _kernel_has_openat2(self.descriptor)
        self._open_hows: dict[int, _OpenHow] = {}

    @property
    def crosses_mounts(self) -> bool:
        """Whether other file systems mounted below the root are entered."""
        return self._device is None

    def close(self) -> None:
        """Close the root; idempotent."""
        self._finalizer()
        self.descriptor = -1  # the number may be reused for another file

    def check(self) -> None:
        """Check that the root still exists.

        Raises:
            BackendUnavailableError: It was removed, whether or not another replaced it.
        """
        _check_not_removed(os.fstat(self.descriptor), self._path)

    def explain_error(self, error: OSError, path: str) -> Exception:
        """Return `error` with the workspace path, or as a BackendUnavailableError.

        Raises:
            BackendUnavailableError: `path` does not exist because the root was removed.
        """
        if error.errno == errno.ENOENT:
            self.check()
        if error.errno in _NOT_CONNECTED:
            return _unavailable(f"Directory is not available ({error.strerror})", self._path)
        return explain_error(error, path)

    def open_directory(self, path: str) -> int:
        """Open a directory for listing."""
        if not path:
            self.check()  # a removed directory can still be opened, and is empty
        return self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)

    def is_directory(self, path: str) -> bool:
        """Return whether `path` is a directory, with one open."""
        try:
            os.close(self._open(path or ".", _TRAVERSE))
        except OSError:
            return False
        return True

    def open_parent(self, path: str) -> tuple[int, str]:
        """Open the parent directory of `path`; return it with the last segment."""
        parent, _, name = path.rpartition("/")
        _encode(name)
        return self._open(parent or ".", O_PATH | os.O_DIRECTORY), name

    def open_file(self, path: str) -> tuple[int, os.stat_result]:
        """Open a regular file for reading.

        Raises:
            PermissionError: It is a pipe, socket, device or link; it is not opened.
        """
        if not HAS_PROC:
            return self._open_file_by_name(path)
        return open_from_pin(self._open(path, O_PATH), path)

    def open_entry(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Open a regular file in an open directory below the root, like `open_file`."""
        encoded = _encode(name)
        if not HAS_PROC:
            return self._open_by_name(directory, name)
        if self._kernel:
            return open_from_pin(self._open_atomically(directory, encoded, _PIN_NOFOLLOW), name)
        return open_from_pin(self._open_segment(encoded, _PIN_NOFOLLOW, directory), name)

    def open_listed(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Open a file in an open directory that has just listed it as a regular file.

        It takes half the calls of `open_entry`. What has replaced the file since is opened
        without waiting for it, and closed unless it is regular.

        Raises:
            PermissionError: It is not a regular file any more.
        """
        _encode(name)
        try:
            descriptor = os.open(name, _READ_ENTRY, dir_fd=directory)
        except BlockingIOError:  # somebody holds a lease on it: only a blocking call breaks that
            return self.open_entry(directory, name)
        descriptor, found = _keep_regular(descriptor, name)
        if self._device in (None, found.st_dev):
            return descriptor, found
        os.close(descriptor)  # a mount, or a layer of an overlay: the kernel knows
        return self.open_entry(directory, name)

    def lstat(self, path: str) -> tuple[os.stat_result, str | None]:
        """Return the metadata of `path`, and its target if it is a link."""
        if not path:
            found = os.fstat(self.descriptor)
            _check_not_removed(found, self._path)
            return found, None
        parent, name = self.open_parent(path)
        with OpenDescriptor(parent):
            return stat_entry(parent, name)

    def _open_file_by_name(self, path: str) -> tuple[int, os.stat_result]:
        parent, name = self.open_parent(path)
        with OpenDescriptor(parent):
            return self._open_by_name(parent, name)

    def _open_by_name(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        """Without /proc: check, open non-blocking, check the opened file again."""
        check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), name)
        return _keep_regular(self._open_segment(_encode(name), _READ_ENTRY, directory), name)

    def _open(self, path: str, flags: int) -> int:
        encoded = _encode(path)
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        if not self._kernel:
            return self._open_by_segment(self.descriptor, encoded, flags)
        if len(encoded) <= _MAX_PATH:
            return self._open_atomically(self.descriptor, encoded, flags)
        return self._open_long(encoded, flags)

    def _open_atomically(self, directory: int, path: bytes, flags: int) -> int:
        for _ in range(_MAX_RETRIES):
            descriptor = _openat2(directory, path, self._open_how(flags))
            if descriptor >= 0:
                return descriptor
            if descriptor != -errno.EAGAIN:
                raise os_error(-descriptor, os.fsdecode(path))
        return self._open_by_segment(directory, path, flags)

    def _open_long(self, path: bytes, flags: int) -> int:
        """Open a path that is longer than the kernel takes, in as few parts as possible."""
        current = os.dup(self.descriptor)
        try:
            while len(path) > _MAX_PATH:
                cut = path.rindex(b"/", 0, _MAX_PATH) if b"/" in path[:_MAX_PATH] else len(path)
                deeper = self._open_atomically(current, path[:cut], _TRAVERSE)
                os.close(current)
                current, path = deeper, path[cut + 1 :]
            return self._open_atomically(current, path, flags)
        finally:
            os.close(current)

    def _open_how(self, flags: int) -> _OpenHow:
        how = self._open_hows.get(flags)
        if how is None:
            how = self._open_hows[flags] = _OpenHow(flags, 0, self._resolve)
        return how

    def _open_by_segment(self, directory: int, path: bytes, flags: int) -> int:
        *parents, name = path.split(b"/")
        current = os.dup(directory)
        try:
            for segment in parents:
                deeper = self._open_segment(segment, _TRAVERSE, current)
                os.close(current)
                current = deeper
            return self._open_segment(name, flags, current)
        finally:
            os.close(current)

    def _open_segment(self, segment: bytes, flags: int, directory: int) -> int:
        descriptor = os.open(segment, flags, dir_fd=directory)
        if self._device is not None and os.fstat(descriptor).st_dev != self._device:
            os.close(descriptor)
            raise os_error(errno.EXDEV, os.fsdecode(segment))
        return descriptor


def _check_not_removed(found: os.stat_result, path: Path) -> None:
    if not found.st_nlink:
        raise _unavailable("Directory was removed", path)


def _unavailable(reason: str, path: Path) -> BackendUnavailableError:
    return BackendUnavailableError(f"{reason}; create it and open it again: {str(path)!r}")


def explain_error(error: OSError, path: str) -> OSError:
    """Return the error with the workspace path, and a reason where the kernel gives none."""
    if error.errno == errno.EXDEV:
        text = "On another file system; use cross_mounts=True to enter it"
        return os_error(errno.EPERM, path, text)
    if error.errno == errno.ELOOP:
        return os_error(errno.EPERM, path, "Symbolic links are not followed")
    return os_error(error.errno or errno.EIO, path, error.strerror or "")


def stat_entry(directory: int, name: str) -> tuple[os.stat_result, str | None]:
    """Return the metadata of an entry of an open directory, and its target if it is a link."""
    for _ in range(_MAX_RETRIES):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return found, None
        try:
            return found, os.readlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EINVAL:  # else it was replaced and is not a link any more
                raise
    raise os_error(errno.ENOENT, name)


def _open_root(path: Path, *, kernel: bool) -> int:
    if "\0" in str(path):
        raise ValueError(f"Root contains a NUL character: {str(path)!r}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if kernel:
        how = _OpenHow(flags, 0, _NO_MAGICLINKS)
        descriptor = _openat2(_AT_FDCWD, os.fsencode(path), how)
        if descriptor >= 0:
            return descriptor
    if _passes_through_proc(path):
        raise os_error(errno.EPERM, str(path), "Root passes through a magic link of the kernel")
    return os.open(path, flags)


def _passes_through_proc(path: Path) -> bool:
    """Return whether a link on the path is in /proc, where links do not lead to their text."""
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
    probe = _openat2(descriptor, b".", _OpenHow(flags, 0, _NO_SYMLINKS | _BENEATH))
    if probe < 0:
        return False
    os.close(probe)
    return True


def _openat2(directory: int, path: bytes, how: _OpenHow) -> int:
    """Return a descriptor, or the negated error number."""
    if not _IS_LINUX:
        return -errno.ENOSYS
    descriptor = _syscall(_OPENAT2, directory, path, ctypes.addressof(how), ctypes.sizeof(how))
    return descriptor if descriptor >= 0 else -ctypes.get_errno()


def _encode(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise os_error(errno.ENOENT, path) from None  # no name on disk can be encoded so


def open_regular(
    path: str | os.PathLike[str], *, follow_links: bool = False
) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor and its metadata.

    Use `follow_links` only for a path that the user named: then a link to a regular file is
    accepted too.

    Raises:
        PermissionError: It is a link, directory, pipe, socket or device.
        OSError: The file cannot be opened.
    """
    flags = 0 if follow_links else os.O_NOFOLLOW
    name = os.fspath(path)
    try:
        if HAS_PROC:
            return open_from_pin(os.open(name, _PIN | flags), name)
        return _open_by_name(name, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise _not_regular(name) from None
        raise


def read_regular(
    path: str | os.PathLike[str], max_bytes: int, *, follow_links: bool = False
) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises:
        PermissionError: It is a link, directory, pipe, socket or device; see `open_regular`.
        OSError: The file cannot be read, or is larger; the size is checked before reading.
    """
    descriptor, found = open_regular(path, follow_links=follow_links)
    with OpenDescriptor(descriptor):
        if found.st_size > max_bytes:
            raise _too_large(path, max_bytes)
        chunks: list[bytes] = []
        room = max_bytes + 1  # it may grow while it is read
        while room > 0 and (chunk := os.read(descriptor, min(_CHUNK_SIZE, room))):
            chunks.append(chunk)
            room -= len(chunk)
    if room <= 0:
        raise _too_large(path, max_bytes)
    return b"".join(chunks)


def open_from_pin(pinned: int, path: str) -> tuple[int, os.stat_result]:
    """Open the file behind the `O_PATH` descriptor `pinned` if it is regular; close `pinned`."""
    try:
        found = check_regular(os.fstat(pinned), path)
        return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_CLOEXEC), found
    except OSError as error:
        # the kernel's error names the /proc path of the descriptor
        raise os_error(error.errno or errno.EIO, path, error.strerror or "") from None
    finally:
        os.close(pinned)


def check_regular(found: os.stat_result, path: str) -> os.stat_result:
    """Return `found` if it describes a regular file; raise PermissionError if not."""
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path)
    return found


def _open_by_name(path: str, flags: int) -> tuple[int, os.stat_result]:
    """Without /proc: check, open non-blocking, check the opened file again."""
    check_regular(Path(path).stat(follow_symlinks=not flags), path)
    return _keep_regular(os.open(path, _NONBLOCKING | flags), path)


def _keep_regular(descriptor: int, path: str) -> tuple[int, os.stat_result]:
    """Return an open file with its metadata if it is regular; else close it, and raise."""
    try:
        return descriptor, check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise


def _not_regular(path: str) -> OSError:
    return os_error(errno.EPERM, path, "Not a regular file")


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> OSError:
    return os_error(errno.EFBIG, os.fspath(path), f"Larger than {max_bytes:,} bytes")


class MountPoints:
    """The mount points below one directory."""

    def __init__(self, directory: RootedDirectory) -> None:
        """Read them; none if `directory` does not cross mounts."""
        self._points = frozenset(_read_points(directory) if directory.crosses_mounts else ())

    def __iter__(self) -> Iterator[str]:
        """Iterate over their paths."""
        return iter(self._points)

    def filesystem_root(self, path: str) -> str:
        """Return the topmost directory of the file system that holds `path`."""
        if not self._points:
            return ""
        above = [parent for parent in parents_of(path) if parent in self._points]
        return above[-1] if above else ""

    def find_below(self, path: str) -> str | None:
        """Return the first mount point at or below `path`, which cannot be removed."""
        found = (each for each in self._points if f"{each}/".startswith(f"{path}/"))
        return min(found, default=None)


def _read_points(directory: RootedDirectory) -> list[str]:
    try:
        root = str(Path(f"/proc/self/fd/{directory.descriptor}").readlink()).rstrip("/")
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    points = [
        os.fsdecode(_ESCAPED.sub(_unescape, line.split(b" ")[_MOUNT_POINT])) for line in lines
    ]
    return [point[len(root) + 1 :] for point in points if point.startswith(f"{root}/")]


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])
