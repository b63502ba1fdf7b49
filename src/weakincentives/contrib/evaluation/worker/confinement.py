"""What a worker gives up: first before it starts anything, then before it runs any code.

Used in the worker process, so it imports only modules that import nothing heavy.
"""

import errno
import resource

from weakincentives.posix.child_process import Confinement, confine, install_filter, libc
from weakincentives.sandbox.seccomp import (
    HOST_RULES,
    RULES,
    NotIn,
    Rule,
    build_filter,
    calls,
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

_PATH_CALLS = (
    *calls("open 2 -", "openat 257 56", "openat2 437 437", "creat 85 -", "stat 4 -", "lstat 6 -"),
    *calls("newfstatat 262 79", "statx 332 291", "access 21 -", "faccessat 269 48"),
    *calls("faccessat2 439 439", "readlink 89 -", "readlinkat 267 78", "chdir 80 49", "mkdir 83 -"),
    *calls("mkdirat 258 34", "rmdir 84 -", "unlink 87 -", "unlinkat 263 35", "rename 82 -"),
    *calls("renameat 264 38", "renameat2 316 276", "link 86 -", "linkat 265 37", "symlink 88 -"),
    *calls("symlinkat 266 36", "truncate 76 45", "mknod 133 -", "mknodat 259 33", "statfs 137 43"),
    *calls("memfd_create 319 279", "inotify_add_watch 254 27", "statmount 457 457"),
    *calls("listmount 458 458"),
    # which a copy of a file expects
    *calls("getxattr 191 8", "lgetxattr 192 9", "listxattr 194 11", error=errno.ENOTSUP),
    *calls("llistxattr 195 12", "getxattrat 464 464", "listxattrat 465 465", error=errno.ENOTSUP),
)
_PROCESS_CALLS = (
    *calls("execve 59 221", "execveat 322 281", "fork 57 -", "vfork 58 -", "kill 62 129"),
    *calls("tkill 200 130", "tgkill 234 131", "rt_sigqueueinfo 129 138"),
    *calls("rt_tgsigqueueinfo 297 240", "pidfd_send_signal 424 424", "setsid 112 157"),
    *calls("setpgid 109 154", "connect 42 203", "bind 49 200"),
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
    libc.mallopt(_M_ARENA_MAX, 1)  # each arena reserves address space, which is limited


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
