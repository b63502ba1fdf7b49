"""Attribute calls: a seccomp supervisor that changes modes, owners, times and xattrs for a command.

Landlock has no right for these system calls, and a seccomp filter sees the address of a path, not
the path. So the kernel stops each of them and notifies the supervisor (`seccomp_unotify(2)`). The
supervisor opens the file itself, checks that it lies in a directory that the command may
write, makes the call on its own descriptor, and returns the result. The command's own call never
runs, so swapping a path or a descriptor in the meantime changes nothing (TOCTOU). A signal
interrupts a call (EINTR) only as long as the supervisor has not received it.

The supervisor must have the command's user and no more capabilities than the command.

It is part of the supervisor's script, so it imports only the standard library.
"""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Mapping, Sequence

from weakincentives.posix.child_process import check, libc

_Action = Callable[[bytes], int]
"""Makes a call on a path, as the functions of the C library do."""

_REQUEST, _RESPONSE, _ID = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI"), struct.Struct("=Q")
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_OPENAT2, _NO_MAGIC_LINKS = 437, 0x02
_O_PATH = 0o10000000  # not defined outside Linux
_OPEN = _O_PATH | os.O_CLOEXEC
_AT_CURRENT, _AT_NO_FOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_PAGE, _PATH_MAX, _NAME_MAX, _VALUE_MAX = 4096, 4096, 255, 65536  # also where pages are larger
_MICROSECONDS = 1_000_000


class AttributeCalls:
    """Makes the attribute calls of one command, each on a file that the command may write."""

    def __init__(self, listener: int, roots: Sequence[int]) -> None:
        """Answer the notifications of a seccomp filter.

        Args:
            listener: The descriptor of the filter, which becomes readable with each call.
            roots: Descriptors of the directories that the command may write.
        """
        self.listener: int = listener
        self._roots = roots
        self._handlers = _handlers_by_number(os.uname().machine)

    def serve(self) -> None:
        """Make one call that a process waits for, and return the result to it."""
        request = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, request)
        except OSError:
            return  # the process was killed
        call, thread, _, number, _, _, *arguments = _REQUEST.unpack(request)
        try:
            self._perform(call, thread, number, arguments)
            problem = 0
        except OSError as error:
            problem = error.errno or errno.EPERM
        try:  # noqa: SIM105 # contextlib takes long to import
            fcntl.ioctl(self.listener, _SEND, _RESPONSE.pack(call, 0, -problem, 0))
        except OSError:
            pass  # the process was killed

    def _perform(self, call: int, thread: int, number: int, arguments: Sequence[int]) -> None:
        action, target = self._handlers[number](_Caller(thread), arguments)
        try:
            # what was read and opened belongs to another process if the thread has ended
            fcntl.ioctl(self.listener, _IS_VALID, _ID.pack(call))
            if not self._is_writable(_find_path(target)):
                raise _error(errno.EPERM)
            check(action(_link(target)))
        finally:
            os.close(target)

    def _is_writable(self, path: bytes) -> bool:
        """Return whether a path is a root or below one, wherever the root is now."""
        for root in self._roots:
            place = _find_path(root)
            if path.startswith(place + b"/") or path == place:
                # so ends the path of a removed directory, or the name of another one
                return not place.endswith(b" (deleted)") or os.fstat(root).st_nlink > 0
        return False


class _Caller:
    """A thread that waits for its call: its memory, its descriptors, its directory."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._process = b"/proc/%d/" % thread

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of its memory.

        Raises:
            OSError: They are not all there (EFAULT), or must not be read (EPERM).
        """
        data = self._read_parts((address, size))
        if len(data) < size:
            raise _error(errno.EFAULT)
        return data

    def read_text(self, address: int, limit: int, too_long: int) -> bytes:
        """Return what is before the first NUL.

        Raises:
            OSError: It cannot be read, or has `limit` bytes and more (`too_long`).
        """
        first = min(_PAGE - address % _PAGE, limit)
        data = self._read_parts((address, first), (address + first, limit - first))
        text, end, _ = data.partition(b"\0")
        if not end:
            raise _error(too_long if len(data) == limit else errno.EFAULT)
        return text

    def _read_parts(self, *parts: tuple[int, int]) -> bytes:
        # a part is read completely or not at all
        buffer = ctypes.create_string_buffer(sum(size for _, size in parts))
        local = _Part(ctypes.addressof(buffer), len(buffer))
        remote = (_Part * len(parts))(*parts)
        count = libc.process_vm_readv(
            self._thread, ctypes.byref(local), 1, remote, len(parts), ctypes.c_ulong(0)
        )
        return buffer.raw[: check(count)]

    def open_descriptor(self, number: int) -> int:
        """Open what a descriptor refers to; one that was opened as a path only does not count."""
        return self._open_own(b"fd/%d" % _to_int(number), needs_access=True)

    def open(self, address: int) -> int:
        """Open the file that a path leads to."""
        return self.open_at(_AT_CURRENT, address)

    def open_link(self, address: int) -> int:
        """Open the file with this path, itself if it is a link."""
        return self.open_at(_AT_CURRENT, address, _AT_NO_FOLLOW)

    def open_at(self, directory: int, address: int, flags: int = 0) -> int:
        """Open the file that a call with a directory, a path and flags is about."""
        flags = _to_int(flags)
        if flags & ~(_AT_NO_FOLLOW | _AT_EMPTY_PATH):
            raise _error(errno.EINVAL)
        path = self.read_text(address, _PATH_MAX, errno.ENAMETOOLONG)
        mode = _OPEN | (os.O_NOFOLLOW if flags & _AT_NO_FOLLOW else 0)
        if path.startswith(b"/"):
            name, rest = _split_own_link(path)
            if not name:
                return _resolve(_AT_CURRENT, path, mode)
            if not rest and flags & _AT_NO_FOLLOW:
                raise _error(errno.EPERM)  # a file of `/proc`
        elif not path and not flags & _AT_EMPTY_PATH:
            raise _error(errno.ENOENT)
        else:
            number = _to_int(directory)
            name, rest = b"cwd" if number == _AT_CURRENT else b"fd/%d" % number, path
        start = self._open_own(name)
        if not rest:
            return start
        try:
            return _resolve(start, rest, mode)
        finally:
            os.close(start)

    def _open_own(self, name: bytes, *, needs_access: bool = False) -> int:
        link = self._process + name
        try:
            if needs_access and not os.lstat(link).st_mode & 0o600:
                raise _error(errno.EBADF)
            return os.open(link, _OPEN)
        except FileNotFoundError:
            raise _error(errno.EBADF) from None


class _Part(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _link(descriptor: int) -> bytes:
    return b"/proc/self/fd/%d" % descriptor


def _find_path(descriptor: int) -> bytes:
    return os.readlink(_link(descriptor))  # noqa: PTH115 # pathlib takes long to import


def _split_own_link(path: bytes) -> tuple[bytes, bytes]:
    """Return the link below `/proc/PID` that a path of the caller begins with, and the rest.

    Resolved here, these paths would lead to files of this process.
    """
    if path.startswith(b"/dev/fd/"):
        path = b"/proc/self" + path.removeprefix(b"/dev")
    if not path.startswith((b"/proc/self/", b"/proc/thread-self/")):
        return b"", b""
    words = path.split(b"/")
    count = 2 if words[3] == b"fd" and words[4:5] and words[4].isdigit() else 1
    name = b"/".join(words[3 : 3 + count])
    if count == 1 and name not in {b"cwd", b"root"}:
        return b"", b""
    rest = words[3 + count :]
    return name, b"/".join(rest) or (b"." if rest else b"")


def _resolve(directory: int, path: bytes, mode: int) -> int:
    """Open a path without following links of `/proc`, which differ from process to process."""
    how = struct.pack("=QQQ", mode, 0, _NO_MAGIC_LINKS)
    return check(libc.syscall(_OPENAT2, directory, path, how, ctypes.c_size_t(len(how))))


# --- what each call does; the action comes first, so that a bad argument leaves nothing open ---

_Handler = Callable[[_Caller, Sequence[int]], tuple[_Action, int]]


def _set_mode(mode: int) -> _Action:
    return lambda path: libc.chmod(path, mode & 0o7777)


def _set_owner(user: int, group: int) -> _Action:
    ids = ctypes.c_uint(user & 0xFFFFFFFF), ctypes.c_uint(group & 0xFFFFFFFF)
    return lambda path: libc.chown(path, *ids)


def _set_times(times: bytes | None) -> _Action:
    return lambda path: libc.utimensat(_AT_CURRENT, path, times, 0)


def _set_xattr(caller: _Caller, name: int, value: int, size: int, flags: int) -> _Action:
    text = _read_name(caller, name)
    if size > _VALUE_MAX:
        raise _error(errno.E2BIG)
    data = caller.read(value, size) if size else b""
    return lambda path: libc.setxattr(path, text, data, ctypes.c_size_t(size), _to_int(flags))


def _set_xattr_at(caller: _Caller, values: Sequence[int]) -> _Action:
    address, size = values[4:]
    if size < 16:
        raise _error(errno.EINVAL)
    value, length, flags = struct.unpack("=QII", caller.read(address, 16))
    return _set_xattr(caller, values[3], value, length, flags)


def _remove_xattr(caller: _Caller, name: int) -> _Action:
    text = _read_name(caller, name)
    return lambda path: libc.removexattr(path, text)


def _read_name(caller: _Caller, address: int) -> bytes:
    name = caller.read_text(address, _NAME_MAX + 1, errno.ERANGE)
    if not name:
        raise _error(errno.ERANGE)
    return name


def _times(caller: _Caller, address: int) -> bytes | None:
    return caller.read(address, 32) if address else None


def _seconds(caller: _Caller, address: int) -> bytes | None:
    if not address:
        return None
    accessed, modified = struct.unpack("=qq", caller.read(address, 16))
    return struct.pack("=qqqq", accessed, 0, modified, 0)


def _microseconds(caller: _Caller, address: int) -> bytes | None:
    if not address:
        return None
    values = struct.unpack("=qqqq", caller.read(address, 32))
    if not all(0 <= each < _MICROSECONDS for each in values[1::2]):
        raise _error(errno.EINVAL)
    return struct.pack("=qqqq", values[0], values[1] * 1000, values[2], values[3] * 1000)


def _open_for_times(caller: _Caller, directory: int, path: int, flags: int = 0) -> int:
    """Open what `utimensat` is about: without a path, the descriptor itself."""
    if path or _to_int(directory) == _AT_CURRENT:
        return caller.open_at(directory, path, flags)
    if _to_int(flags):
        raise _error(errno.EINVAL)
    return caller.open_descriptor(directory)


_HANDLERS: Mapping[tuple[str, int | None, int | None], _Handler] = {
    # name, numbers on x86_64 and aarch64
    ("chmod", 90, None): lambda c, a: (_set_mode(a[1]), c.open(a[0])),
    ("fchmod", 91, 52): lambda c, a: (_set_mode(a[1]), c.open_descriptor(a[0])),
    ("fchmodat", 268, 53): lambda c, a: (_set_mode(a[2]), c.open_at(a[0], a[1])),
    ("fchmodat2", 452, 452): lambda c, a: (_set_mode(a[2]), c.open_at(a[0], a[1], a[3])),
    ("chown", 92, None): lambda c, a: (_set_owner(a[1], a[2]), c.open(a[0])),
    ("lchown", 94, None): lambda c, a: (_set_owner(a[1], a[2]), c.open_link(a[0])),
    ("fchown", 93, 55): lambda c, a: (_set_owner(a[1], a[2]), c.open_descriptor(a[0])),
    ("fchownat", 260, 54): lambda c, a: (_set_owner(a[2], a[3]), c.open_at(a[0], a[1], a[4])),
    ("utime", 132, None): lambda c, a: (_set_times(_seconds(c, a[1])), c.open(a[0])),
    ("utimes", 235, None): lambda c, a: (_set_times(_microseconds(c, a[1])), c.open(a[0])),
    ("futimesat", 261, None): lambda c, a: (
        _set_times(_microseconds(c, a[2])),
        _open_for_times(c, a[0], a[1]),
    ),
    ("utimensat", 280, 88): lambda c, a: (
        _set_times(_times(c, a[2])),
        _open_for_times(c, a[0], a[1], a[3]),
    ),
    ("setxattr", 188, 5): lambda c, a: (_set_xattr(c, *a[1:5]), c.open(a[0])),
    ("lsetxattr", 189, 6): lambda c, a: (_set_xattr(c, *a[1:5]), c.open_link(a[0])),
    ("fsetxattr", 190, 7): lambda c, a: (_set_xattr(c, *a[1:5]), c.open_descriptor(a[0])),
    ("setxattrat", 463, 463): lambda c, a: (_set_xattr_at(c, a), c.open_at(a[0], a[1], a[2])),
    ("removexattr", 197, 14): lambda c, a: (_remove_xattr(c, a[1]), c.open(a[0])),
    ("lremovexattr", 198, 15): lambda c, a: (_remove_xattr(c, a[1]), c.open_link(a[0])),
    ("fremovexattr", 199, 16): lambda c, a: (_remove_xattr(c, a[1]), c.open_descriptor(a[0])),
    ("removexattrat", 466, 466): lambda c, a: (_remove_xattr(c, a[3]), c.open_at(a[0], a[1], a[2])),
}

CALLS = tuple(_HANDLERS)
"""The calls that a filter has to stop: their names, and their numbers on x86_64 and aarch64."""


def _handlers_by_number(machine: str) -> dict[int, _Handler]:
    column = ("x86_64", "aarch64").index(machine)
    found = ((numbers[column], handler) for (_, *numbers), handler in _HANDLERS.items())
    return {number: handler for number, handler in found if number is not None}


def _to_int(value: int) -> int:
    """Return the `int` that an argument of a system call holds."""
    return ctypes.c_int(value & 0xFFFFFFFF).value


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
