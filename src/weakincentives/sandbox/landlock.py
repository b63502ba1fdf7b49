"""The Landlock sandbox: commands that can use granted paths only, where namespaces are forbidden.

Landlock needs no privileges. This module builds a ruleset, which is a file descriptor; the process
of a command restricts itself with it (see `supervisor`). From there on it, and everything that
it starts, can use the granted paths only, and cannot trace or signal processes outside. A
seccomp filter keeps it from opening sockets, so there is no network. It sees the host's paths
and runs as the current user, without capabilities.

Landlock has no right for the mode, the owner, the times and the extended attributes of a file.
The supervisor makes these calls for the command, on files that it may write (see
`attribute_calls`); the filter refuses the rest of what namespaces would isolate.

What a kernel can promise depends on the version of its interface, the ABI: truncation of
files is covered from 3 on, device ioctls from 5, signals and abstract sockets from 6.
"""

import ctypes
import errno
import os
import stat
import struct
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Unpack

from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import OpenDescriptor, check, close_all, libc
from weakincentives.sandbox.base import ConfinedCommand
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.host import IsolatedSandbox, IsolationOptions
from weakincentives.sandbox.protocol import SandboxUnavailableError
from weakincentives.sandbox.seccomp import HOST_RULES, RULES, build_filter, socket_rules
from weakincentives.sandbox.system_paths import (
    DEVICES,
    ETC_FILES,
    SYSTEM_DIRECTORIES,
    exclude_paths,
    find_hidden_homes,
    search_path,
)

MIN_ABI = 3
"""The first ABI that keeps a command from truncating files outside."""
SIGNAL_ABI = 6
"""The first ABI that keeps a command from sending signals to processes outside."""

_CREATE_RULESET, _ADD_RULE = 444, 445  # the same numbers on every machine
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_SCOPE_ALL = 0b11  # abstract Unix sockets, signals
_CONNECT_AND_BIND_TCP = 0b11
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Access(IntFlag):
    """What can be done with a file or below a directory, as in linux/landlock.h."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Access.EXECUTE | Access.READ_FILE | Access.READ_DIR
WRITE = (
    READ
    | (Access.WRITE_FILE | Access.TRUNCATE | Access.REFER)
    | (Access.REMOVE_DIR | Access.REMOVE_FILE)
    | (Access.MAKE_DIR | Access.MAKE_REG | Access.MAKE_SOCK | Access.MAKE_FIFO | Access.MAKE_SYM)
)
DEVICE = Access.READ_FILE | Access.WRITE_FILE | Access.IOCTL_DEV
_FILE_RIGHTS = (
    Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a command may do with a path and all below it; a missing path is no error."""

    path: str
    access: Access


def landlock_abi() -> int:
    """Return the version of the kernel's interface; 0 if it is missing or disabled."""
    return max(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG), 0)


def create_ruleset(grants: Iterable[Grant]) -> int:
    """Return a descriptor of a ruleset that denies everything except the grants, and TCP.

    Raises:
        OSError: The kernel has no Landlock, or did not accept a rule.
    """
    abi = landlock_abi()
    handled = _rights_of(abi)
    attributes = struct.pack("=Q", handled)
    if abi >= 4:
        attributes += struct.pack("=Q", _CONNECT_AND_BIND_TCP)
    if abi >= SIGNAL_ABI:
        attributes += struct.pack("=Q", _SCOPE_ALL)
    size = ctypes.c_size_t(len(attributes))
    ruleset = check(libc.syscall(_CREATE_RULESET, attributes, size, 0))
    try:
        for grant in grants:
            _add(ruleset, grant, handled)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


class LandlockSandbox(IsolatedSandbox):
    """Runs commands that Landlock and seccomp confine to the workspace."""

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        **options: Unpack[IsolationOptions],
    ) -> None:
        """Run commands on the files of `filesystem`; see `IsolatedSandbox`.

        Raises:
            SandboxUnavailableError: The kernel has no Landlock, or the filesystem is read-only.
        """
        abi = landlock_abi()
        if abi < MIN_ABI:
            found = f"has ABI {abi}" if abi else "does not enable it"
            raise SandboxUnavailableError(
                f"Landlock needs ABI {MIN_ABI} (Linux 6.2), but this kernel {found}; use bubblewrap"
            )
        self._filter = build_filter((*RULES, *socket_rules(()), *HOST_RULES))
        super().__init__(filesystem, **options)
        self._open: list[int] = []
        self._close_rules = weakref.finalize(self, close_all, self._open)
        try:
            # once: a path that is replaced later gives access to nothing new
            self._open.append(create_ruleset(self._grants()))
            self._open += [os.open(path, _DIRECTORY) for path in self._writable()]
        except OSError as error:
            self.close()
            raise SandboxUnavailableError(f"Landlock did not accept the rules: {error}") from error

    def _variables(self) -> dict[str, str]:
        root = self._root
        path = search_path(self._readable, workspace=root, seen_at=root, original=self._original)
        # git stops at a file of the system that is there and cannot be read
        return {**self._environment.variables(path=path), "GIT_CONFIG_NOSYSTEM": "1"}

    def _shares_network(self) -> bool:
        return False  # there are no sockets

    def close(self) -> None:
        """Stop all running commands and release the rules; idempotent."""
        super().close()
        self._close_rules()

    def _confine(self, command: PreparedCommand, cwd: str) -> ConfinedCommand:
        del cwd  # the process starts there
        copies: list[int] = []  # each command closes its own
        try:
            copies.extend(map(os.dup, self._open))
        except OSError as error:
            close_all(copies)
            raise SandboxUnavailableError(f"Cannot start a process: {error}") from error
        ruleset, *writable = copies
        confinement = self._limit()._replace(
            drops_privileges=True,
            ruleset=ruleset,
            seccomp=self._filter,
            writable=tuple(writable),
        )
        return _RestrictedCommand(replace(command, confinement=confinement))

    def _writable(self) -> tuple[str, ...]:
        return self._root, self._environment.home, self._environment.temporary

    def _grants(self) -> Iterator[Grant]:
        yield from (Grant(path, WRITE) for path in self._writable())
        yield from (Grant(path, DEVICE) for path in DEVICES)
        hook = () if self._hook is None else (str(self._hook),)
        system = exclude_paths(SYSTEM_DIRECTORIES, find_hidden_homes())
        yield from (Grant(path, READ) for path in (*system, *self._readable, *hook))
        yield from (Grant(f"/etc/{name}", READ) for name in ETC_FILES)
        yield from (Grant(f"/proc/{name}", Access.READ_FILE) for name in _PROC_FILES)


class _RestrictedCommand(ConfinedCommand):
    """A command with the descriptors that its process confines itself with."""

    @property
    def advice(self) -> str:
        return (
            "; Landlock needs seccomp notifications, which a container or sandbox around this"
            " process forbids or already uses: use bubblewrap or podman"
        )

    def close(self) -> None:
        close_all(self.command.confinement.descriptors)


_PROC_FILES = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems")


def _rights_of(abi: int) -> int:
    if abi < 1:
        raise OSError(errno.EOPNOTSUPP, "The kernel does not support or enable Landlock")
    newest = {1: Access.MAKE_SYM, 2: Access.REFER, 3: Access.TRUNCATE, 4: Access.TRUNCATE}
    return 2 * newest.get(abi, Access.IOCTL_DEV) - 1


def _add(ruleset: int, grant: Grant, handled: int) -> None:
    try:
        target = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    with OpenDescriptor(target):
        access = grant.access & handled
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            access &= _FILE_RIGHTS
        rule = struct.pack("=Qi", access, target)
        check(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
