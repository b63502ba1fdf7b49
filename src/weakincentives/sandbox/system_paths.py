"""What programs need of the host to run: the paths that a sandbox makes readable.

Everything else is invisible or unreadable: home directories, keys, sockets, other projects.
From `/etc` only files without secrets are taken, by name.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Programs and libraries; on most systems all but the first are links into it."""

ETC_FILES = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("debian_version", "fonts", "gai.conf", "host.conf", "hosts", "inputrc", "java-17-openjdk"),
    *("java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias"),
    *("localtime", "magic", "mime.types", "nsswitch.conf", "os-release", "papersize", "perl"),
    *("pki/ca-trust", "pki/tls/certs", "profile", "protocols", "python3", "python3.11"),
    *("python3.12", "python3.13", "redhat-release", "rpc", "services", "shells", "ssl/certs"),
    *("ssl/openssl.cnf", "terminfo", "timezone", "xattr.conf"),
)
"""Names below `/etc` that are configuration for everybody."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

_PROGRAM_DIRECTORIES = frozenset({"bin", "sbin"})


def readable_paths(extra: Iterable[str | os.PathLike[str]] = ()) -> tuple[str, ...]:
    """Return the directories outside `/usr` that hold programs: this Python's, and `PATH`'s.

    Of a directory `PREFIX/bin` in `PATH` the prefix is readable, because programs have their
    libraries there; never a home directory or one that contains it.
    """
    more = [str(Path(each)) for each in extra]
    found = [*_python_prefixes(), *_path_prefixes(os.get_exec_path()), *more]
    resolved = dict.fromkeys(each for path in found for each in (path, os.path.realpath(path)))
    return tuple(
        path for path in resolved if can_read(path) and not _is_below(path, SYSTEM_DIRECTORIES)
    )


def search_path(readable: Iterable[str]) -> list[str]:
    """Return the directories of `PATH` that a sandboxed command can read."""
    allowed = (*SYSTEM_DIRECTORIES, *readable)
    kept = [each for each in os.get_exec_path() if _is_below(each, allowed)]
    return list(dict.fromkeys(each for each in kept if can_read(each)))


def can_read(path: str) -> bool:
    """Return whether this user can look at a path; it may be in somebody's closed home."""
    return os.access(path, os.R_OK)


def _python_prefixes() -> Iterator[str]:
    yield from (sys.prefix, sys.base_prefix)
    # the interpreter may be a link into yet another installation
    yield str(Path(sys.executable).resolve().parent.parent)


def _path_prefixes(directories: Iterable[str]) -> Iterator[str]:
    home = str(Path.home())
    for each in directories:
        path = Path(each)
        if path.name not in _PROGRAM_DIRECTORIES or not path.is_absolute() or not can_read(each):
            continue
        prefix = str(path.parent)
        if not _is_below(home, (prefix,)) and not (path.parent.name.startswith(".")):
            yield prefix


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in directories)
