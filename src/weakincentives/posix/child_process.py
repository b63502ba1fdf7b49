"""A helper process from the inside: it ends with its parent, forks for requests, confines itself.

`workers` is the side of the process that starts it. This module is part of the supervisor of
commands, which also runs inside containers, so it imports only the standard library, and of that
only what is imported fast.
"""

import ctypes
import errno
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from weakincentives.posix.frames import receive_descriptors

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
"""The signals that a fork server ignores; of SIGCHLD so that the kernel reaps what it forks."""

FIRST_PRIVATE = 16
"""Descriptors from here on are closed when a program starts; those below may be its own."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_CAPBSET_DROP = 1, 15, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SET_MODE_FILTER = 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5  # no signal interrupts a call that has begun
_LANDLOCK_RESTRICT = 446  # the same number on every machine
_CAPABILITY_VERSION_3 = 0x20080522
libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True)


def set_name(name: bytes) -> None:
    """Name this process, so that `pkill python` does not hit it."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt orphaned descendants, where the kernel supports it."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def watch(parent: int) -> Sequence[int]:
    """Return a descriptor that becomes readable when the parent dies, where there is one."""
    if not parent or sys.platform != "linux":
        return ()
    alive = os.pidfd_open(parent)
    if os.getppid() != parent:
        os._exit(1)
    return (alive,)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(requests: int, parent: int, handle: Callable[[bytes, list[int]], object]) -> None:
    """Fork a process for every request, until the parent is gone or has closed the socket.

    Args:
        requests: The socket for requests: each is one byte with descriptors.
        parent: The process that has started this one, if its death has to be watched.
        handle: Called in the new process with the request and the descriptors.
    """
    for each in IGNORED:
        signal.signal(each, signal.SIG_IGN)
    become_subreaper()  # if a fork is killed, its orphans can be found here
    gc.disable()  # or it would copy the memory of each fork
    watched = [requests, *watch(parent)]
    with socket.socket(fileno=requests) as server:
        while select.select(watched, [], [])[0] == [requests]:
            data, descriptors = receive_descriptors(server, 1)
            if not data:
                return
            if _fork() == 0:
                close_all(watched)
                handle(data, descriptors)
                os._exit(0)
            close_all(descriptors)


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for each in descriptors:
        os.close(each)


def move_up(descriptor: int) -> int:
    """Return a duplicate above the numbers that a program inherits."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE)


class Confinement(NamedTuple):
    """What a process gives up for good before it starts a program.

    Args:
        limits: Resource limits, as pairs of an `RLIMIT_` constant and a value.
        drops_privileges: Whether to give up all capabilities.
        ruleset: A Landlock ruleset to restrict the process with.
        seccomp: A BPF program that filters system calls.
        writable: Directories whose files' attributes the supervisor may change for the command;
            if there are any, the filter must notify it of the calls in `attribute_calls`.
        inherited: Descriptors that the program gets as 3, 4, ...
        is_wrapped: Whether the program is a wrapper that kills everything when it exits.
        forbidden_network: The inode of a network namespace that it must not be in.
    """

    limits: tuple[tuple[int, int], ...] = ()
    drops_privileges: bool = False
    ruleset: int | None = None
    seccomp: bytes = b""
    writable: tuple[int, ...] = ()
    inherited: tuple[int, ...] = ()
    is_wrapped: bool = False
    forbidden_network: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors to pass on to the process that is to confine itself."""
        ruleset = () if self.ruleset is None else (self.ruleset,)
        return (*ruleset, *self.writable, *self.inherited)

    def with_descriptors(self, received: Sequence[int]) -> "Confinement":
        """Return it with what has arrived for its `descriptors`, in that order."""
        first = int(self.ruleset is not None)
        last = first + len(self.writable)
        return self._replace(
            ruleset=received[0] if first else None,
            writable=tuple(received[first:last]),
            inherited=tuple(received[last:]),
        )


def confine(confinement: Confinement, courier: int | None = None) -> None:
    """Confine this process and everything it starts, for good.

    `courier` is the Unix socket to send the listener of the filter on, if it has one.

    Raises:
        OSError: The kernel refused; the program must not run.
    """
    forbidden = confinement.forbidden_network
    if forbidden is not None and network_namespace() in {forbidden, None}:
        raise OSError(errno.EPERM, "The network of the command is not isolated")
    for kind, limit in confinement.limits:
        _lower_limit(kind, limit)
    if confinement.drops_privileges:
        drop_privileges()
    if confinement.ruleset is not None:
        check(libc.syscall(_LANDLOCK_RESTRICT, confinement.ruleset, 0))
    # these become 3, 4, ...; the ones that they replace are of no use to the program
    for number, each in enumerate(list(map(move_up, confinement.inherited)), 3):
        os.dup2(each, number)
    if confinement.seccomp:
        install_filter(confinement.seccomp, courier if confinement.writable else None)


def network_namespace() -> int | None:
    """Return the inode of this process's network namespace; None if it cannot be told."""
    try:
        return os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 # pathlib takes long to import
    except OSError:
        return None


def drop_privileges() -> None:
    """Give up every capability, and the way to get one back by a set-user-ID program."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    number = 0
    while libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, bytes(24)))


def install_filter(
    program: bytes, courier: int | None = None, *, all_threads: bool = False
) -> None:
    """Filter the system calls of this process and everything it starts, for good.

    If the filter notifies, `courier` is the Unix socket on which its listener is sent. Threads
    that run already are filtered only if `all_threads`.
    """
    code = ctypes.create_string_buffer(program, len(program))
    filled = _FilterProgram(len(program) // 8, ctypes.addressof(code))
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    flags = int(all_threads) if courier is None else _NEW_LISTENER | _WAIT_KILLABLE
    number = _SECCOMP[os.uname().machine]
    listener = check(libc.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(filled)))
    if courier is not None:
        with socket.socket(fileno=os.dup(courier)) as supervisor:
            socket.send_fds(supervisor, [b"+"], [listener])


def check(result: int) -> int:
    """Return the result of a system call.

    Raises:
        OSError: It is negative: the call has failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _lower_limit(kind: int, limit: int) -> None:
    """Set a resource limit; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (lowest, lowest))


def _fork() -> int:
    """Fork this process; without room for one more, whoever waits for it sees a closed socket."""
    try:
        return os.fork()
    except OSError:
        return -1
