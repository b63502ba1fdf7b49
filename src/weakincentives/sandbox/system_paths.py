"""What programs need of the host to run: the paths that a sandbox makes readable.

Everything else is invisible or unreadable: home directories, keys, sockets, other projects.
From `/etc` only files without secrets are taken, by name.
"""

import glob
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from weakincentives.sandbox.protocol import SandboxUnavailableError

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

_HOST_DIRECTORIES = (*SYSTEM_DIRECTORIES, "/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var")
_KERNEL_DIRECTORIES = ("/proc", "/sys")
_SYSTEM_PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/usr/local/sbin")
_PROGRAM_DIRECTORIES = frozenset({"bin", "sbin"})
_ENVIRONMENTS = (".venv", "venv")
_ENVIRONMENT_FILE = "pyvenv.cfg"
_PREFIX_DIRECTORIES = (
    *("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "share"),
    _ENVIRONMENT_FILE,
)
_LAYOUTS: Mapping[str, Sequence[str]] = {
    "lib/jvm.cfg": ("conf", "jmods", "release"),  # Java
    "pkg/tool": ("pkg", "src", "VERSION", "go.env"),  # Go
    "conda-meta": ("ssl", "etc/fonts", "*-linux-gnu"),
}
_PYTHON_FILES = ("bin/python*", "lib/python3*", "lib/libpython3*", _ENVIRONMENT_FILE)
_KEY_DIRECTORIES = frozenset({".ssh", ".gnupg", ".aws"})
_HOME_MARKS = (*_KEY_DIRECTORIES, ".config", ".kube", ".docker", ".netrc", ".bashrc", ".profile")
_PASSWD = Path("/etc/passwd")
_PASSWD_FIELDS = 7
_FIRST_PERSON, _NOBODY = 1000, 65534  # user IDs; those below belong to the system
_MAX_LINKS = 40  # as the kernel follows
_ETC = "/etc"
_MAX_ENTRIES = 64  # of a directory that is copied; a mount is cheaper than more of them
_MAX_BYTES = 512 * 1024


def check_workspace(path: str) -> None:
    """Make sure that a workspace is not the system itself, which commands could then change.

    Raises:
        SandboxUnavailableError: It is a directory of the system, or contains one.
    """
    root = os.path.realpath(path)
    contained = [each for each in _HOST_DIRECTORIES if is_below(os.path.realpath(each), (root,))]
    if contained or is_below(root, _KERNEL_DIRECTORIES):
        raise SandboxUnavailableError(
            f"The workspace {root!r} contains or belongs to the system;"
            " choose a project's directory"
        )


def readable_paths(
    extra: Iterable[str | os.PathLike[str]] = (), *, workspace: str
) -> tuple[str, ...]:
    """Return what programs outside `/usr` need: this Python, and those in `PATH`.

    Of a directory `PREFIX/bin` in `PATH` its neighbours `lib` and `share` are readable, because
    programs have their libraries there; nothing of a home, and no directory that contains one.
    The virtual environment of the workspace needs its interpreter. Nothing inside the workspace is
    returned: a command could replace it by a link to a directory outside, which the next command
    would then read.
    """
    more = [str(Path(each)) for each in extra]
    environment = find_environment(workspace)
    homes = _homes()
    own = () if environment is None else _interpreters(Path(workspace, environment, "bin"), homes)
    found = [*_python_files(homes), *_path_files(os.get_exec_path(), homes), *own, *more]
    fixed = [path for path in found if not _leads_into(path, workspace)]
    resolved = dict.fromkeys(each for path in fixed for each in (path, os.path.realpath(path)))
    hidden = find_hidden_homes()
    return tuple(
        path
        for path in resolved
        if can_read(path) and (not is_below(path, SYSTEM_DIRECTORIES) or is_below(path, hidden))
    )


def find_hidden_homes() -> tuple[str, ...]:
    """Return the homes of people inside the directories of the system, such as `/usr/home/ada`.

    The homes of the system's own users are directories of programs, such as `/usr/sbin`.
    """
    real = {os.path.realpath(home): uid for uid, home in _users()}
    return tuple(
        sorted(
            home
            for home, uid in real.items()
            if is_below(home, SYSTEM_DIRECTORIES)
            and not any(is_below(each, (home,)) for each in _SYSTEM_PROGRAMS)
            and Path(home).is_dir()
            and (_FIRST_PERSON <= uid != _NOBODY or _has_home_mark(home))
        )
    )


def exclude_paths(directories: Iterable[str], hidden: Sequence[str]) -> Iterator[str]:
    """Yield the directories; of one that contains a hidden path, what is beside that path."""
    for each in directories:
        if not any(is_below(path, (each,)) for path in hidden):
            yield each
        elif each not in hidden and can_read(each):
            with os.scandir(each) as entries:
                beside = [entry.path for entry in entries if not entry.is_symlink()]
            yield from exclude_paths(beside, hidden)


def search_path(
    readable: Iterable[str], *, workspace: str, seen_at: str, original: str | None = None
) -> list[str]:
    """Return the directories in which a sandboxed command looks for programs.

    They are the directories of `PATH` that it can read, after the virtual environment of the
    workspace. Shims that choose a Python, as those of pyenv, are in a directory that it cannot
    read: this Python takes their place.

    Args:
        readable: The directories that the command can read.
        workspace: The workspace.
        seen_at: Where the command finds the workspace.
        original: The directory that the workspace is a copy of: its directories in `PATH` are
            those of the copy, where it has them.
    """
    environment = find_environment(workspace)
    found = [] if environment is None else [f"{seen_at}/{environment}/bin"]
    allowed = (*SYSTEM_DIRECTORIES, *readable)
    for each in map_search_path(workspace=workspace, seen_at=seen_at, original=original):
        is_copied = original is not None and is_below(each, (seen_at,))
        if is_copied or (is_below(each, allowed) and can_read(each)):
            found.append(each)
        elif os.access(f"{each}/python3", os.X_OK):
            found.append(str(Path(sys.executable).parent))
    return list(dict.fromkeys(found))


def map_search_path(*, workspace: str, seen_at: str, original: str | None) -> list[str]:
    """Return the directories of `PATH`, with those of the original's copy for the original's."""
    if original is None:
        return os.get_exec_path()
    found: list[str] = []
    for each in os.get_exec_path():
        inside = os.path.relpath(each, original) if is_below(each, (original,)) else None
        is_copied = inside is not None and Path(workspace, inside).is_dir()
        found.append(os.path.normpath(f"{seen_at}/{inside}") if is_copied else each)
    return found


def trusted_search_path(untrusted: Iterable[str | os.PathLike[str]] = ()) -> str:
    """Return `PATH` without relative directories, and without those inside untrusted ones.

    A command may have put a program into its workspace, and we would start it outside the sandbox.
    """
    excluded = [os.path.realpath(each) for each in untrusted]
    return os.pathsep.join(
        each
        for each in os.get_exec_path()
        if Path(each).is_absolute() and not any(_leads_into(each, root) for root in excluded)
    )


def find_program(name: str, untrusted: Iterable[str | os.PathLike[str]] = ()) -> str | None:
    """Return the first program of this name in `PATH` that is not inside an untrusted directory.

    Args:
        name: The name, without a directory.
        untrusted: Directories that commands can change, or whose authors are strangers.
    """
    excluded = [os.path.realpath(each) for each in untrusted]
    for directory in trusted_search_path(excluded).split(os.pathsep):
        found = shutil.which(name, path=directory) if directory else None
        if found and not any(_leads_into(found, root) for root in excluded):
            return found
    return None


def find_environment(workspace: str) -> str | None:
    """Return the name of the virtual environment in a workspace, or None if it has none."""
    for name in _ENVIRONMENTS:
        if Path(workspace, name, _ENVIRONMENT_FILE).is_file():
            return name
    return None


def can_read(path: str) -> bool:
    """Return whether this user can look at a path; it may be in somebody's closed home."""
    return os.access(path, os.R_OK)


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Return whether a path is one of the directories, or inside one, by name."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in directories)


def _python_files(homes: Set[str]) -> Iterator[str]:
    for each in (sys.prefix, sys.base_prefix):
        yield from _installation(Path(each), homes, is_python=True)
    yield from _interpreters(Path(sys.executable).parent, homes)


def _path_files(directories: Iterable[str], homes: Set[str]) -> Iterator[str]:
    for each in directories:
        path = Path(each)
        if path.name not in _PROGRAM_DIRECTORIES or not path.is_absolute() or not can_read(each):
            continue
        is_environment = (path.parent / _ENVIRONMENT_FILE).is_file()
        if is_environment:
            yield from _interpreters(path, homes)
        if is_environment or not path.parent.name.startswith("."):
            yield from _installation(path.parent, homes, is_python=is_environment)


def _interpreters(programs: Path, homes: Set[str]) -> Iterator[str]:
    """Yield what the `python` of an environment needs of the installations it leads to.

    The links may be those of a stranger: only a directory that has a standard library counts.
    """
    path = programs / "python"
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        prefix = path.parent.parent
        if _find(prefix, "lib/python3*/os.py"):
            yield from _installation(prefix, homes, is_python=True)


def _installation(prefix: Path, homes: Set[str], *, is_python: bool) -> Iterator[str]:
    """Yield what programs need of a prefix: never the prefix, which may be somebody's home.

    Of a home, nothing is taken unless it is the prefix of a Python; then only that.
    """
    names = [*_PREFIX_DIRECTORIES]
    names += [each for mark in _LAYOUTS if _exists(f"{prefix}/{mark}") for each in _LAYOUTS[mark]]
    if _is_private(prefix, homes):
        names = [*_PYTHON_FILES] if is_python else []
    found = (each for name in names for each in _find(prefix, name))
    yield from (
        each
        for each in found
        if not _is_private(each, homes) and not _leads_into_home(each, prefix, homes)
    )


def _find(prefix: Path, pattern: str) -> list[str]:
    """Return the paths below a prefix; none if it cannot be read, where pathlib would raise."""
    names = glob.glob(pattern, root_dir=prefix)  # noqa: PTH207 # as above
    return [f"{prefix}/{each}" for each in names]


def _is_private(path: str | Path, homes: Set[str]) -> bool:
    """Return whether a path is a home or contains one, by its name or by what is in it."""
    return any(
        _has_home_mark(each)
        or not _KEY_DIRECTORIES.isdisjoint(Path(each).parts)
        or any(is_below(home, (each,)) for home in homes)
        for each in {str(path), os.path.realpath(path)}
    )


def _leads_into_home(path: str, prefix: Path, homes: Set[str]) -> bool:
    """Return whether links lead from a prefix to what is inside somebody's home."""
    own = os.path.realpath(prefix)
    entered = (
        each for each in Path(os.path.realpath(path)).parents if not is_below(own, (f"{each}",))
    )
    return any(_is_private(each, homes) for each in entered)


def _exists(path: str) -> bool:
    return os.access(path, os.F_OK)


def _has_home_mark(path: str) -> bool:
    return any(_exists(f"{path}/{mark}") for mark in _HOME_MARKS)


def _homes() -> set[str]:
    """Return the homes of this machine's users, by every name."""
    found = {home for _, home in _users()}
    return found | {os.path.realpath(each) for each in found}


def _users() -> Iterator[tuple[int, str]]:
    """Yield the users of this machine with their homes; this process may have another one."""
    lines: list[str] = []
    with suppress(OSError):  # a container may have no such file
        lines = _PASSWD.read_text(errors="replace").splitlines()
    users = [each for line in lines if len(each := line.split(":")) == _PASSWD_FIELDS]
    own = (0, os.path.expanduser("~"))  # noqa: PTH111 # pathlib raises for a user without one
    found = [own, *((int(each[2]), each[5]) for each in users if each[2].isdecimal())]
    yield from (each for each in found if Path(each[1]).is_absolute())


def _leads_into(path: str, workspace: str) -> bool:
    inside = (workspace, os.path.realpath(workspace))
    return any(is_below(each, inside) for each in (path, os.path.realpath(path)))


class EtcDirectory:
    """A directory that commands get as `/etc`, and the paths to mount on it.

    Each mount costs every command time, since bubblewrap looks at all mounts for each one. So a
    sandbox copies the small files and directories when it starts, and commands mount one directory.
    Only what everybody on this machine can read is copied; a command sees it as it was then.
    """

    def __init__(self, directory: Path, texts: Mapping[str, str], source: str = _ETC) -> None:
        """Fill an empty directory with the files of `ETC_FILES`.

        Args:
            directory: Where the files are copied to.
            texts: Files that the sandbox has instead of those of the host, by name.
            source: The directory to copy from.
        """
        self.path: str = str(directory)
        self.mounts: list[str] = []
        self._directory = directory
        for name, text in texts.items():
            (directory / name).write_text(text)
        for name in ETC_FILES:
            path = f"{source}/{name}"
            if can_read(path) and not _copy(path, f"{directory}/{name}"):
                self.mounts.append(path)
                self._create(directory / name, is_directory=Path(path).is_dir())

    def add_mount_point(self, path: str) -> None:
        """Make sure that a path of the host can be mounted, if it is in `/etc`."""
        if is_below(path, (_ETC,)):
            target = self._directory / os.path.relpath(path, _ETC)
            self._create(target, is_directory=Path(path).is_dir())

    def _create(self, target: Path, *, is_directory: bool) -> None:
        with suppress(OSError):  # bubblewrap says why a path cannot be mounted
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir(exist_ok=True) if is_directory else target.touch()


def _copy(source: str, target: str) -> bool:
    """Copy a file or directory if it is small and public; return whether it was."""
    try:
        found = list(_entries(source))
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 # as below
        for path, mode in found:
            _copy_entry(path, target + path[len(source) :], mode)
    except (OSError, _NotCopiedError):
        return False
    return True


def _copy_entry(path: str, target: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211 # as below
    elif stat.S_ISDIR(mode):
        os.mkdir(target)  # noqa: PTH102 # as below
    else:
        with open(path, "rb", 0) as file, open(target, "xb", 0) as copy:  # noqa: PTH123 # as below
            copy.write(file.read())
            os.fchmod(copy.fileno(), stat.S_IMODE(mode) & 0o777)


def _entries(source: str) -> Iterator[tuple[str, int]]:
    """Yield a path and all below it with their modes; links count only below it."""
    # a hundred entries are looked at for each sandbox, which takes twice as long with pathlib
    pending, count, size = [(source, os.stat(source))], 0, 0  # noqa: PTH116 # as above
    while pending:
        path, status = pending.pop()
        mode, count = status.st_mode, count + 1
        is_link, is_directory = stat.S_ISLNK(mode), stat.S_ISDIR(mode)
        size += status.st_size
        is_public = is_link or bool(mode & stat.S_IROTH)
        is_known = is_link or is_directory or stat.S_ISREG(mode)
        if not (is_public and is_known) or count > _MAX_ENTRIES or size > _MAX_BYTES:
            raise _NotCopiedError(path)
        yield path, mode
        if is_directory:
            with os.scandir(path) as entries:
                pending += [(each.path, each.stat(follow_symlinks=False)) for each in entries]


class _NotCopiedError(Exception):
    """A path is too large, or not for everybody to read."""
