"""Sandbox selection: what each sandbox can promise on this host, measured, and which one to use.

A probe runs a small program inside the sandbox that tries to break out: read and write
outside, connect to sockets, signal and trace other processes, use forbidden system calls. A
promise holds if every attempt failed. Nothing is assumed from versions or settings.
"""

import json
import os
import socket
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from weakincentives.filesystem import HostBacked, HostFilesystem
from weakincentives.posix import OpenDescriptor
from weakincentives.sandbox.base import CommandOptions
from weakincentives.sandbox.bubblewrap import BubblewrapSandbox
from weakincentives.sandbox.host import HostSandbox, IsolatedSandbox, LocalSandbox
from weakincentives.sandbox.landlock import LandlockSandbox
from weakincentives.sandbox.podman import PodmanSandbox
from weakincentives.sandbox.protocol import ConnectionListener, SandboxUnavailableError

PROMISES = {
    "files": "reads and writes nothing outside the workspace, except programs and libraries",
    "network": "reaches no network, and no socket of the host",
    "processes": "sees, signals and traces no process outside",
    "privileges": "has no capabilities and cannot get any",
    "system calls": "cannot use ptrace, mount, io_uring, bpf and others",
    "attributes": "changes no permissions, times or attributes of files outside",
    "memory": "all commands together stay within a memory limit",
    "process count": "all commands together stay within a number of processes",
}
"""What a sandbox may promise, and what that means."""

REQUIRED = ("files", "attributes", "network", "processes", "privileges", "system calls")
"""The promises without which `auto` does not use a sandbox."""

AUTO = "auto"
ISOLATED: Mapping[str, type[IsolatedSandbox | PodmanSandbox]] = {
    "bubblewrap": BubblewrapSandbox,
    "landlock": LandlockSandbox,
    "podman": PodmanSandbox,
}
"""The sandboxes that `auto` tries, in this order."""
LOCAL = "local"
SANDBOXES = (AUTO, *ISOLATED, LOCAL)
"""The names that `create_sandbox` takes."""

_TIMEOUT = 60.0  # seconds; a probe takes milliseconds


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a sandbox can do on this host.

    Args:
        name: Its name.
        promises: Whether each promise holds; empty if the sandbox could not be started.
        problem: Why it cannot be used, with the fix; empty if it can.
    """

    name: str
    promises: Mapping[str, bool]
    problem: str = ""

    @property
    def is_available(self) -> bool:
        """Whether commands can run in it with everything that is required."""
        return not self.problem

    @property
    def broken(self) -> tuple[str, ...]:
        """The promises that do not hold."""
        return tuple(name for name, holds in self.promises.items() if not holds)


def probe_sandbox(name: str, *, untrusted: Iterable[str | os.PathLike[str]] = ()) -> ProbeResult:
    """Return what the sandbox of this name can promise on this host.

    Args:
        name: One of `ISOLATED`.
        untrusted: Directories whose programs are not started: a workspace, where a command may
            have put a `bwrap` or `podman`.
    """
    kind = ISOLATED[name]
    try:
        with _bait() as (workspace, targets), ExitStack() as stack:
            if issubclass(kind, BubblewrapSandbox | PodmanSandbox):
                sandbox = stack.enter_context(kind(workspace, untrusted=untrusted))
            else:
                sandbox = stack.enter_context(kind(workspace))
            attempts = _attempt(sandbox, targets)
            limited = sandbox.limited
    except (SandboxUnavailableError, OSError) as error:
        return ProbeResult(name, {}, str(error))
    promises = {each: not any(attempts.get(each, {"": True}).values()) for each in REQUIRED}
    promises["memory"] = "memory" in limited
    promises["process count"] = "pids" in limited
    broken = [each for each in REQUIRED if not promises[each]]
    problem = f"Promises broken on this host: {', '.join(broken)}" if broken else ""
    return ProbeResult(name, promises, problem)


def probe_sandboxes() -> tuple[ProbeResult, ...]:
    """Return what every isolating sandbox can promise on this host."""
    with ThreadPoolExecutor(len(ISOLATED)) as pool:
        return tuple(pool.map(probe_sandbox, ISOLATED))


@dataclass(frozen=True, slots=True)
class SandboxChoice:
    """The sandbox that `auto` stands for on this host.

    Args:
        name: Its name.
        rejected: The sandboxes before it, which cannot be used here.
        broken: The promises that it does not keep here; none of them is required.
    """

    name: str
    rejected: tuple[ProbeResult, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why the sandboxes before it are not used; empty if there is none before it."""
        return _join_problems(self.rejected)


def choose_sandbox(*, untrusted: Iterable[str | os.PathLike[str]] = ()) -> SandboxChoice:
    """Return the first sandbox whose required promises hold.

    Args:
        untrusted: Directories whose programs are not started; see `probe_sandbox`.

    Raises:
        SandboxUnavailableError: No sandbox works here; the message names the fixes.
    """
    excluded, rejected = tuple(untrusted), list[ProbeResult]()
    for name in ISOLATED:
        result = probe_sandbox(name, untrusted=excluded)
        if result.is_available:
            return SandboxChoice(name, tuple(rejected), result.broken)
        rejected.append(result)
    raise SandboxUnavailableError(
        f"No sandbox can isolate commands on this host. {_join_problems(rejected)}"
    )


def _join_problems(results: Iterable[ProbeResult]) -> str:
    return "; ".join(f"{each.name}: {each.problem}" for each in results)


def create_sandbox(
    name: str,
    filesystem: HostFilesystem | str | os.PathLike[str],
    *,
    allow_hosts: Iterable[str] = (),
    on_connection: ConnectionListener | None = None,
    **options: Unpack[CommandOptions],
) -> HostSandbox | PodmanSandbox:
    """Return the sandbox of this name on a workspace.

    Args:
        name: One of `SANDBOXES`; `auto` is the first that keeps its promises on this host.
        filesystem: The workspace, or the path of its directory.
        allow_hosts: Hosts that commands may connect to; see `BubblewrapSandbox`.
        on_connection: Called with each connection when it has ended, in another thread.
        options: Those of `CommandSandbox`: `env`, `readable`, `original`, `grace` and `clock`.

    Raises:
        SandboxUnavailableError: It cannot be used here, or cannot limit the network to hosts.
        ValueError: The name is unknown, or a host is invalid.
    """
    hosts = tuple(allow_hosts)
    if name == AUTO:
        root = filesystem.root if isinstance(filesystem, HostBacked) else filesystem
        name = choose_sandbox(untrusted=(root, options.get("original") or root)).name
    if name not in {*ISOLATED, LOCAL}:
        raise ValueError(f"Sandbox must be one of {', '.join(SANDBOXES)}: {name!r}")
    check_hosts(name, hosts)
    kind = ISOLATED.get(name, LocalSandbox)
    if issubclass(kind, BubblewrapSandbox | PodmanSandbox):
        return kind(filesystem, allow_hosts=hosts, on_connection=on_connection, **options)
    return kind(filesystem, **options)


def check_hosts(name: str, hosts: Sequence[str]) -> None:
    """Make sure that a sandbox can limit the network to these hosts, if there are any.

    Raises:
        SandboxUnavailableError: It cannot tell hosts apart.
    """
    kind = ISOLATED.get(name, LocalSandbox)
    if not hosts or issubclass(kind, BubblewrapSandbox | PodmanSandbox):
        return
    fact = "reaches the whole network" if name == LOCAL else "has no network"
    raise SandboxUnavailableError(
        f"The {name} sandbox {fact} and cannot allow only {', '.join(hosts)}; use bubblewrap"
        " or podman, or name no hosts"
    )


# --- the probe: targets outside the sandbox, and a program inside that tries to reach them ---


@contextmanager
def _bait() -> Generator[tuple[Path, dict[str, object]], None, None]:
    """Make a workspace, and things outside that a command must not reach; yield both."""
    with tempfile.TemporaryDirectory(prefix="wink-probe-") as name:
        directory = Path(name)
        workspace, secret = directory / "workspace", directory / "secret"
        workspace.mkdir()
        secret.write_text("secret")
        unix_socket = str(directory / "socket")  # may be longer than an address can be
        abstract = f"\0{directory.name}"  # probes may run at the same time
        with socket.socket() as tcp, _unix_server(directory), _unix_server(abstract):
            tcp.bind(("127.0.0.1", 0))
            tcp.listen()
            targets: dict[str, object] = {
                "secret": str(secret),
                "outside": str(directory / "planted"),
                "port": tcp.getsockname()[1],
                "sockets": [unix_socket, abstract],
                "process": os.getpid(),
            }
            yield workspace, targets


@contextmanager
def _unix_server(address: str | Path) -> Generator[None, None, None]:
    """Listen at an abstract address, or at a file called `socket` in a directory."""
    with socket.socket(socket.AF_UNIX) as server:
        if isinstance(address, str):
            server.bind(address)
        else:
            with OpenDescriptor(os.open(address, os.O_PATH)) as directory:
                server.bind(f"/proc/self/fd/{directory}/socket")
        server.listen()
        yield


def _attempt(
    sandbox: HostSandbox | PodmanSandbox, targets: Mapping[str, object]
) -> dict[str, dict[str, bool]]:
    """Return for every promise which attempts to break it succeeded."""
    arguments = [sandbox.python, "-I", "-S", "-c", _ATTEMPTS, json.dumps(targets)]
    done = sandbox.exec(arguments, timeout=_TIMEOUT)
    found: dict[str, Any] = {}
    with suppress(ValueError):
        found = json.loads(done.stdout)
    if done.exit_code != 0 or not found:
        raise SandboxUnavailableError(f"The probe failed inside the sandbox: {done.stderr[-500:]}")
    return found


_ATTEMPTS = r"""
import ctypes, fcntl, json, os, resource, socket, struct, sys
targets = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
SETTING = "/proc/sys/kernel/core_pattern"  # whoever writes it runs programs as root

def succeeds(action):
    try:
        return action() is not False
    except OSError:
        return False

def connects(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)

def connects_to_file(path):
    here = os.getcwd()
    os.chdir(os.path.dirname(path))
    try:
        connects(socket.AF_UNIX, os.path.basename(path))
    finally:
        os.chdir(here)

def reaches(number, *arguments):
    # the arguments are wrong on purpose: a kernel that looks at them lets the call through
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments) >= 0 or ctypes.get_errno() not in (1, 38)

def capabilities():
    header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    libc.capget(header, data)
    return any(data.raw) or libc.prctl(39, 0, 0, 0, 0) != 1

def set_user_id():
    with open("set-user-id", "w"):
        pass
    try:
        os.chmod("set-user-id", 0o4755)
    finally:
        os.remove("set-user-id")

def set_flags():
    # to what they are, through a descriptor that can only be read
    with open(sys.executable) as file:
        flags = fcntl.ioctl(file, 0x80086601, bytes(8))
        fcntl.ioctl(file, 0x40086602, flags)

def change_limit():
    limit = resource.prlimit(targets["process"], resource.RLIMIT_NOFILE)
    resource.prlimit(targets["process"], resource.RLIMIT_NOFILE, limit)

def write_system_file():
    with open("/usr/.wink-probe", "x"):
        os.remove("/usr/.wink-probe")

try:
    os.utime(os.getcwd())
except OSError as error:
    sys.exit(f"Cannot change the times of a file in the workspace: {error}. If the setting"
             " kernel.yama.ptrace_scope is 2 or 3, set it to 1")

numbers = {"x86_64": (101, 165, 425, 321), "aarch64": (117, 40, 425, 280)}[os.uname().machine]
print(json.dumps({
    "files": {
        "read": succeeds(lambda: open(targets["secret"]).close()),
        "write": succeeds(lambda: open(targets["outside"], "w").close()),
        "append": succeeds(lambda: open(targets["secret"], "a").close()),
        "truncate": succeeds(lambda: os.truncate(targets["secret"], 0)),
        "system": succeeds(write_system_file),
        "settings": succeeds(lambda: os.close(os.open(SETTING, os.O_WRONLY))),
        "shadow": succeeds(lambda: open("/etc/shadow").close()),
    },
    "attributes": {
        "permissions": succeeds(lambda: os.chmod(targets["secret"], 0o600)),
        "times": succeeds(lambda: os.utime(targets["secret"])),
        "owner": succeeds(lambda: os.chown(targets["secret"], os.getuid(), -1)),
        "extended": succeeds(lambda: os.setxattr(targets["secret"], "user.wink", b"")),
        "flags": succeeds(set_flags),
    },
    "network": {
        "tcp": succeeds(lambda: connects(socket.AF_INET, ("127.0.0.1", targets["port"]))),
        "unix": succeeds(lambda: connects_to_file(targets["sockets"][0])),
        "abstract": succeeds(lambda: connects(socket.AF_UNIX, targets["sockets"][1])),
    },
    "processes": {
        "signal": succeeds(lambda: os.kill(targets["process"], 0)),
        "environment": succeeds(lambda: open(f"/proc/{targets['process']}/environ").close()),
        "limits": succeeds(change_limit),
        "command line": succeeds(lambda: open(f"/proc/{targets['process']}/cmdline").close()),
    },
    "privileges": {
        "capabilities": capabilities(),
        "set-user-ID": succeeds(set_user_id),
    },
    "system calls": {
        "ptrace": reaches(numbers[0], 16, 0, 0, 0),
        "mount": reaches(numbers[1], b"none", b"/no/such/directory", b"tmpfs", 0, None),
        "io_uring": reaches(numbers[2], 0, None),
        "bpf": reaches(numbers[3], -1, None, 0),
        "filter": libc.prctl(21, 0, 0, 0, 0) != 2,
    },
}))
"""
