"""What a worker gives up: first before it starts anything, then before it runs any code.

Used in the worker process, so it imports only modules that import nothing heavy.
"""

import ctypes
import errno
import resource

from weakincentives.posix.child_process import Confinement, confine, install_filter
from weakincentives.sandbox.seccomp import (
    HOST_RULES,
    RULES,
    NotIn,
    Rule,
    build_filter,
    socket_rules,
)

MAX_OPEN_FILES = 64
MAX_CPU_SECONDS = 300
"""Processor time of a worker in its whole life; it is replaced long before."""

ADDRESS_SPACE = 1024 * 1024 * 1024
"""Bytes of memory that a worker can use; an evaluation can use less."""

_NEW_THREAD = 0x3D0F00  # the flags of clone(2) with which the C library makes a thread
_M_ARENA_MAX = -8
_first_use = [0]  # bytes of address space before any code ran
_libc = ctypes.CDLL(None, use_errno=True)

_PATH_CALLS = (
    Rule("open", 2, None),
    Rule("openat", 257, 56),
    Rule("openat2", 437, 437),
    Rule("creat", 85, None),
    Rule("stat", 4, None),
    Rule("lstat", 6, None),
    Rule("newfstatat", 262, 79),
    Rule("statx", 332, 291),
    Rule("access", 21, None),
    Rule("faccessat", 269, 48),
    Rule("faccessat2", 439, 439),
    Rule("readlink", 89, None),
    Rule("readlinkat", 267, 78),
    Rule("chdir", 80, 49),
    Rule("mkdir", 83, None),
    Rule("mkdirat", 258, 34),
    Rule("rmdir", 84, None),
    Rule("unlink", 87, None),
    Rule("unlinkat", 263, 35),
    Rule("rename", 82, None),
    Rule("renameat", 264, 38),
    Rule("renameat2", 316, 276),
    Rule("link", 86, None),
    Rule("linkat", 265, 37),
    Rule("symlink", 88, None),
    Rule("symlinkat", 266, 36),
    Rule("truncate", 76, 45),
    Rule("mknod", 133, None),
    Rule("mknodat", 259, 33),
    Rule("statfs", 137, 43),
    Rule("memfd_create", 319, 279),
    Rule("inotify_add_watch", 254, 27),
    Rule("statmount", 457, 457),
    Rule("listmount", 458, 458),
    Rule("getxattr", 191, 8, errno.ENOTSUP),  # which a copy of a file expects
    Rule("lgetxattr", 192, 9, errno.ENOTSUP),
    Rule("listxattr", 194, 11, errno.ENOTSUP),
    Rule("llistxattr", 195, 12, errno.ENOTSUP),
    Rule("getxattrat", 464, 464, errno.ENOTSUP),
    Rule("listxattrat", 465, 465, errno.ENOTSUP),
)
_PROCESS_CALLS = (
    Rule("execve", 59, 221),
    Rule("execveat", 322, 281),
    Rule("fork", 57, None),
    Rule("vfork", 58, None),
    Rule("kill", 62, 129),
    Rule("tkill", 200, 130),
    Rule("tgkill", 234, 131),
    Rule("rt_sigqueueinfo", 129, 138),
    Rule("rt_tgsigqueueinfo", 297, 240),
    Rule("pidfd_send_signal", 424, 424),
    Rule("setsid", 112, 157),
    Rule("setpgid", 109, 154),
    Rule("connect", 42, 203),
    Rule("bind", 49, 200),
)
# without a listener, the calls that notify one fail
_RULES = (*RULES, *socket_rules(()), *HOST_RULES)
_ONLY_THREADS = Rule("clone", 56, 220, errno.EPERM, (NotIn(0, (_NEW_THREAD,)),))

# built once, in the fork server; the second in addition to the first, which stays
_first_filter = build_filter(_RULES)
_last_filter = build_filter((*_PATH_CALLS, *_PROCESS_CALLS, _ONLY_THREADS))


def confine_worker(ruleset: int | None) -> None:
    """Confine this process, and what it starts, before it starts anything.

    Args:
        ruleset: A Landlock ruleset, if the kernel has Landlock.

    Raises:
        OSError: The kernel refused; the worker must not run.
    """
    _first_use[0] = _used_address_space()
    limits = (
        (resource.RLIMIT_AS, _first_use[0] + ADDRESS_SPACE),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
    )
    confine(Confinement(limits, drops_privileges=True, ruleset=ruleset, seccomp=_first_filter))
    _libc.mallopt(_M_ARENA_MAX, 1)  # each arena reserves address space, which is limited


def seal_worker() -> None:
    """Give up everything that uses paths or processes, in all threads, for good.

    Raises:
        OSError: The kernel refused; no code must run.
    """
    install_filter(_last_filter, all_threads=True)


def limit_memory(more: int) -> None:
    """Lower the limit of the address space: what was used at first, and `more` bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = min(_first_use[0] + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _used_address_space() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123 # pathlib takes long to import
        return int(file.read().split()[0]) * resource.getpagesize()
