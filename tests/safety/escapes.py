"""The escape table: every way out of a sandbox that we know, tried in each of them.

    python -m tests.safety.escapes [--json]

Each attempt is a program that runs as a command of the sandbox and tries to do harm; what it
achieved is judged from outside. All of them share one sandbox, unless one breaks it. The bare host
is there to show that an attempt works where nothing stops it. As root the table is made twice: as
root and as nobody.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from weakincentives.sandbox import (
    ExecResult,
    LocalSandbox,
    PodmanSandbox,
    PodmanSandboxConfig,
    SandboxUnavailableError,
)
from weakincentives.sandbox.bubblewrap import BubblewrapSandbox
from weakincentives.sandbox.cgroup import SandboxLimits
from weakincentives.sandbox.host import HostSandbox
from weakincentives.sandbox.landlock import LandlockSandbox

LIMITS = SandboxLimits(memory=256 * 1024**2, processes=64, file_size=16 * 1024**2)
SECRET = "the key of a provider"
KEY_VARIABLE = "ESCAPES_API_KEY"
NOBODY = 65534
LONG = 120.0
"""Seconds that only an attempt takes that hangs."""
_BEGUN, _LAST = "begun", "nobody comes after this"
_NEW_MOUNTS = 0x00020000
_CREATE, _REMOVE = 0o1000, 0  # of shared memory

Clock: TypeAlias = Callable[[], float]
Make: TypeAlias = Callable[[Path, Clock], HostSandbox | PodmanSandbox]

SANDBOXES: dict[str, Make] = {
    "bare host": lambda root, clock: LocalSandbox(root, clock=clock),
    "bubblewrap": lambda root, clock: BubblewrapSandbox(root, limits=LIMITS, clock=clock),
    "bubblewrap with an allow-list": lambda root, clock: BubblewrapSandbox(
        root, limits=LIMITS, allow_hosts=["allowed.example"], clock=clock
    ),
    "landlock": lambda root, clock: LandlockSandbox(root, limits=LIMITS, clock=clock),
    "podman": lambda root, clock: PodmanSandbox(root, config=podman_config(), clock=clock),
}


def podman_config() -> PodmanSandboxConfig:
    """Return the engine and the image as the environment says, with the limits of all others."""
    return PodmanSandboxConfig(
        memory=LIMITS.memory, processes=LIMITS.processes, file_size=LIMITS.file_size
    ).with_environment()


@dataclass(frozen=True, slots=True)
class Stage:
    """A workspace, and things around it that no command may reach."""

    directory: Path
    workspace: Path
    home: Path
    port: int
    connections: list[str]
    bystander: int
    segment: int
    stop_servers: Callable[[], None]

    @property
    def mark(self) -> str:
        """The name of daemons that this attempt leaves."""
        return f"escapes-daemon-{self.port}-{os.getpid()}"

    @property
    def secret(self) -> Path:
        """A file that only its owner can read."""
        return self.home / "id_ed25519"


@dataclass(frozen=True, slots=True)
class Escape:
    """An attempt to get out.

    Args:
        name: What is tried.
        program: Python that runs inside; it prints what it got hold of.
        succeeded: Judges from outside, by the result and the stage, whether it worked.
    """

    name: str
    program: str
    succeeded: Callable[[ExecResult, Stage], bool]


def printed_secret(done: ExecResult, _: Stage) -> bool:
    """Return whether the secret came out."""
    return SECRET in done.stdout


def printed_yes(done: ExecResult, _: Stage) -> bool:
    """Return whether the program reports success itself."""
    return "yes" in done.stdout.split()


def _exists(name: str) -> Callable[[ExecResult, Stage], bool]:
    return lambda _, stage: (stage.directory / name).exists()


def _changed_secret(_: ExecResult, stage: Stage) -> bool:
    return stage.secret.read_text() != SECRET


def _opened_secret(_: ExecResult, stage: Stage) -> bool:
    return stage.secret.stat().st_mode & 0o777 == 0o666


def _survived(done: ExecResult, stage: Stage) -> bool:
    # where the limit is one of the user, what else runs may have used it up
    is_refused = "BlockingIOError" in done.stderr
    assert is_refused or (stage.workspace / "pid").exists(), f"the daemon never ran: {done.stderr}"
    return bool(_daemons(stage))


def _daemons(stage: Stage) -> list[int]:
    mark = stage.mark.encode()
    return [int(each) for each in _processes() if _command_line(each).startswith(mark)]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes() -> list[str]:
    return [each.name for each in Path("/proc").iterdir() if each.name.isdigit()]


_SYSCALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def reaches(x86_64, aarch64, *arguments):
    ctypes.set_errno(0)
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    return libc.syscall(number, *arguments) >= 0 or ctypes.get_errno() not in (1, 38)
"""
_WRITE = "def write(path, text):\n    with open(path, 'w') as file: file.write(text)\n"

ESCAPES: tuple[Escape, ...] = (
    Escape("read a key in the home", "print(open('{home}/id_ed25519').read())", printed_secret),
    Escape("read /etc/shadow", "open('/etc/shadow').read(); print('yes')", printed_yes),
    Escape(
        "read a key in the environment",
        "import os; print(os.environ.get('" + KEY_VARIABLE + "'))",
        printed_secret,
    ),
    Escape(
        "read another process's environment in /proc",
        "print(open('/proc/{pid}/environ', 'rb').read())",
        printed_secret,
    ),
    Escape(
        "read the key through any process in /proc",
        """
import glob
for each in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/root{home}/id_ed25519'):
    try:
        print(open(each, 'rb').read())
    except OSError:
        pass
""",
        printed_secret,
    ),
    Escape(
        "see other processes",
        """
import os
for each in filter(str.isdigit, os.listdir('/proc')):
    try:
        if b'escapes-' + b'bystander' in open(f'/proc/{each}/cmdline', 'rb').read(): print('yes')
    except OSError:
        pass
""",
        printed_yes,
    ),
    Escape(
        "change the limits of another process",
        "import resource as r; r.prlimit({pid}, r.RLIMIT_CORE, (0, 0)); print('yes')",
        printed_yes,
    ),
    Escape(
        "read the shared memory of another process",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
found = libc.shmat({segment}, None, 0)
if found != ctypes.c_void_p(-1).value: print(ctypes.string_at(found))
""",
        printed_secret,
    ),
    Escape("signal other processes", "import os; os.kill({pid}, 0); print('yes')", printed_yes),
    Escape("write outside", _WRITE + "write('{directory}/planted', '')", _exists("planted")),
    Escape("overwrite a file outside", _WRITE + "write('{home}/id_ed25519', '')", _changed_secret),
    Escape(
        "truncate a file outside",
        "import os; os.truncate('{home}/id_ed25519', 0)",
        _changed_secret,
    ),
    Escape(
        "change the permissions of a file outside",
        "import os; os.chmod('{home}/id_ed25519', 0o666)",
        _opened_secret,
    ),
    Escape(
        "change the times of a file outside",
        "import os; os.utime('{home}/id_ed25519', (1, 1))",
        lambda _, stage: stage.secret.stat().st_mtime == 1,
    ),
    Escape(
        "write through a link in the workspace",
        "import os; os.symlink('{directory}', 'out')\n" + _WRITE + "write('out/linked', '')",
        _exists("linked"),
    ),
    Escape(
        "hard-link a file outside into the workspace",
        "import os; os.link('{home}/id_ed25519', 'mine'); print(open('mine').read())",
        printed_secret,
    ),
    Escape(
        "rename a file outside into the workspace",
        "import os; os.rename('{home}/id_ed25519', 'mine')",
        lambda _, stage: not stage.secret.exists(),
    ),
    Escape(
        "remount /usr writable",
        """
import os, subprocess
subprocess.run(['mount', '-o', 'remount,rw,bind', '/usr'])
with open('/usr/.escapes', 'x'): os.remove('/usr/.escapes')
print('yes')
""",
        printed_yes,
    ),
    Escape(
        "change a setting of the kernel",
        "import os; os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)); print('yes')",
        printed_yes,
    ),
    Escape(
        "read the kernel's tables of memory, timers and load",
        """
names = ['kpageflags', 'pagetypeinfo', 'slabinfo', 'timer_list', 'vmallocinfo', 'pressure/memory']
for name in names:
    try:
        print('yes' if open('/proc/' + name, 'rb', buffering=0).read(8) else '')
    except OSError:
        pass
""",
        printed_yes,
    ),
    Escape(
        "mount a file system",
        _SYSCALL + "print('yes' if reaches(165, 40, b'n', b'/no/such', b'tmpfs', 0, 0) else '')",
        printed_yes,
    ),
    Escape(
        "make a user namespace",
        _SYSCALL + "print('yes' if reaches(272, 97, 0x10000000) else '')",
        printed_yes,
    ),
    Escape(
        "connect to a loopback port",
        "import socket; socket.create_connection(('127.0.0.1', {port}), 60).send(b'tcp')",
        lambda _, stage: "tcp" in stage.connections,
    ),
    Escape(
        "connect to a Unix socket",
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{directory}/socket');"
        "s.send(b'unix')",
        lambda _, stage: "unix" in stage.connections,
    ),
    Escape(
        "connect to an abstract Unix socket",
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0escapes-{port}');"
        "s.send(b'abstract')",
        lambda _, stage: "abstract" in stage.connections,
    ),
    Escape(
        "reach a host that is not on the allow-list",
        """
import os, socket
hosts = ['127.0.0.1', 'localhost', '[::ffff:127.0.0.1]', '127.1', '2130706433', 'allowed.example']
proxy = os.environ.get('HTTP_PROXY', 'http://127.0.0.1:{port}').rpartition('/')[2].split(':')
for host in hosts:
    for request in (f'CONNECT {host}:{port} HTTP/1.1', f'GET http://{host}:{port}/ HTTP/1.1'):
        with socket.create_connection(proxy, 60) as client:
            client.sendall(request.encode() + b'\\r\\nHost: allowed.example\\r\\n\\r\\n')
            client.recv(1000)
            client.sendall(b'through the proxy')
""",
        lambda _, stage: bool(stage.connections),
    ),
    Escape(
        "send a datagram",
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.sendto(b'udp', ('127.0.0.1', {port}))",
        lambda _, stage: "udp" in stage.connections,
    ),
    Escape(
        "open a raw socket",
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); print('yes')",
        printed_yes,
    ),
    Escape(
        "open a socket to the hypervisor",
        "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); print('yes')",
        printed_yes,
    ),
    Escape("io_uring", _SYSCALL + "print('yes' if reaches(425, 425, 0, 0) else '')", printed_yes),
    Escape(
        "ptrace", _SYSCALL + "print('yes' if reaches(101, 117, 16, 0, 0, 0) else '')", printed_yes
    ),
    Escape("bpf", _SYSCALL + "print('yes' if reaches(321, 280, -1, 0, 0) else '')", printed_yes),
    Escape("userfaultfd", _SYSCALL + "print('yes' if reaches(323, 282, 1) else '')", printed_yes),
    Escape(
        "keyring", _SYSCALL + "print('yes' if reaches(250, 219, 0, -3, 0) else '')", printed_yes
    ),
    Escape(
        "have capabilities, or get them",
        """
import ctypes, struct
libc = ctypes.CDLL(None)
data = ctypes.create_string_buffer(24)
libc.capget(struct.pack('=Ii', 0x20080522, 0), data)
print('yes' if any(data.raw) or libc.prctl(39, 0, 0, 0, 0) != 1 else '')
""",
        printed_yes,
    ),
    Escape(
        "leave a set-user-ID program",
        "import os\n" + _WRITE + "write('program', ''); os.chmod('program', 0o4755)",
        lambda _, stage: bool((stage.workspace / "program").stat().st_mode & 0o4000),
    ),
    Escape(
        "type into a terminal",
        "import pty, fcntl, os; a, b = pty.openpty(); fcntl.ioctl(b, 0x5412, b'x'); print('yes')",
        printed_yes,
    ),
    Escape(
        "more processes than allowed",
        """
import os, time
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        count += 1
except OSError:
    pass
print('yes' if count >= 300 else count)
""",
        printed_yes,
    ),
    Escape(
        "more memory than allowed",
        "held = [bytearray(b'x') * 2**20 for _ in range(512)]; print('yes')",
        printed_yes,
    ),
    Escape(
        "a file larger than allowed",
        "with open('large', 'wb') as file: file.truncate(0); [file.write(bytes(2**20)) for _ in"
        " range(24)]",
        lambda _, stage: (stage.workspace / "large").stat().st_size > LIMITS.file_size,
    ),
    Escape(
        "flood the memory of the caller with output",
        "import os\nfor _ in range(500): os.write(1, b'x' * 65536)",
        lambda done, _: len(done.out.data) > 2 * 1024**2,
    ),
    Escape(
        "a daemon that stays",
        """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    try:
        is_daemon = os.fork() == 0
    finally:
        open('pid', 'w').close()
    if is_daemon:
        os.execv(sys.executable, ['{mark}', '-c', 'import time; time.sleep(1000)'])
    os._exit(0)
while not os.path.exists('pid'): time.sleep(0.01)
""",
        _survived,
    ),
    Escape(
        "outlive the timeout",
        """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in ('pid', 'time is up'):
    open(name, 'w').close()
os.write(1, b'late')
os.execv(sys.executable, ['{mark}', '-c', 'import time; time.sleep(1000)'])
""",
        _survived,
    ),
    Escape(
        "kill the supervisor",
        """
import os, signal, sys
open('pid', 'w').close()
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, ['{mark}', '-c', 'import time; time.sleep(1000)'])
os.close(writing)
os.read(reading, 1)  # ends when the other program runs
os.kill(os.getppid(), signal.SIGKILL)
""",
        _survived,
    ),
)


@dataclass(frozen=True, slots=True)
class _UsualClock:
    """The usual clock, until a command says that its time is up."""

    path: Path

    def __call__(self) -> float:
        return time.monotonic() + (1e5 if self.path.exists() else 0)


def attempt_all(sandbox: str, escapes: Sequence[Escape] = ESCAPES) -> dict[str, str]:
    """Return for each escape `stopped`, `possible`, or why there is no answer."""
    results: dict[str, str] = {}
    with _directory() as directory:
        while left := [each for each in escapes if each.name not in results]:
            try:
                results |= _attempt_in_one(SANDBOXES[sandbox], directory, left)
            except SandboxUnavailableError as error:
                results[left[0].name] = f"not available: {error}"
    return results


def _attempt_in_one(make: Make, directory: Path, escapes: Sequence[Escape]) -> dict[str, str]:
    """Return what became of escapes in one sandbox, up to the one that breaks it."""
    results: dict[str, str] = {}
    workspace = directory / "workspace"
    with make(workspace, _UsualClock(workspace / "time is up")) as made:
        made.exec([made.python, "-I", "-c", "pass"])  # raises if it does not work at all
        for escape in escapes:
            with _furnished(directory) as stage:
                command = [made.python, "-I", "-c", _program(escape, stage)]
                try:
                    done = made.exec(command, timeout=LONG)
                except SandboxUnavailableError:
                    if not results:  # else one before may have broken it
                        done = ExecResult(tuple(command), 1)
                        results[escape.name] = _judge(escape, done, stage)
                    break
                has_begun = _BEGUN in done.stderr
                results[escape.name] = _judge(escape, done, stage) if has_begun else str(done)
    return results


def _program(escape: Escape, stage: Stage) -> str:
    program = f"import os; os.write(2, b'{_BEGUN} ')\n{escape.program}"
    for name, value in _targets(stage).items():
        program = program.replace(f"{{{name}}}", value)
    return program


def _judge(escape: Escape, done: ExecResult, stage: Stage) -> str:
    stage.stop_servers()
    return "possible" if escape.succeeded(done, stage) else "stopped"


def _targets(stage: Stage) -> dict[str, str]:
    return {
        "home": str(stage.home),
        "directory": str(stage.directory),
        "port": str(stage.port),
        "pid": str(stage.bystander),
        "segment": str(stage.segment),
        "mark": stage.mark,
    }


def _kill_daemons(stage: Stage) -> None:
    for each in _daemons(stage):
        os.kill(each, signal.SIGKILL)


@contextmanager
def make_stage() -> Generator[Stage, None, None]:
    """Make a workspace, a home with a key, servers that note who connects, and a bystander."""
    with _directory() as directory, _furnished(directory) as stage:
        yield stage


@contextmanager
def _directory() -> Generator[Path, None, None]:
    """Make the directory of a stage, with a workspace that a sandbox can be opened on."""
    with tempfile.TemporaryDirectory(prefix="wink-escapes-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "workspace").mkdir()
        yield directory


@contextmanager
def _furnished(directory: Path) -> Generator[Stage, None, None]:
    """Put everything in its place; at the end, remove it with whatever else is there."""
    workspace, home = directory / "workspace", directory / "home"
    home.mkdir(mode=0o700)
    (home / "id_ed25519").write_text(SECRET)
    os.environ[KEY_VARIABLE] = SECRET
    try:
        with ExitStack() as servers, _bystander() as bystander, _shared_memory() as segment:
            port, connections = servers.enter_context(_servers(directory))
            stage = Stage(
                *(directory, workspace, home, port, connections),
                *(bystander, segment, servers.close),
            )
            try:
                yield stage
            finally:
                _kill_daemons(stage)
    finally:
        for each in (*workspace.iterdir(), *directory.iterdir()):
            if each.is_symlink() or not each.is_dir():
                each.unlink()
            elif each != workspace:
                shutil.rmtree(each)


@contextmanager
def _shared_memory() -> Generator[int, None, None]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, ctypes.c_size_t(100), _CREATE | 0o600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    try:
        text = SECRET.encode()
        ctypes.memmove(libc.shmat(segment, None, 0), text, len(text))
        yield segment
    finally:
        libc.shmctl(segment, _REMOVE, None)


@contextmanager
def _bystander() -> Generator[int, None, None]:
    argv = ["escapes-bystander", "1000"]
    process = subprocess.Popen(
        argv, executable=shutil.which("sleep"), env={KEY_VARIABLE: SECRET, "PATH": os.defpath}
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def _servers(directory: Path) -> Generator[tuple[int, list[str]], None, None]:
    connections: list[str] = []
    tcp, udp = _two_of_one_port()
    port: int = tcp.getsockname()[1]
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(directory / "socket"))
    abstract.bind(f"\0escapes-{port}")
    for each in (unix, abstract):
        each.listen()
    servers = [tcp, unix, abstract, udp]
    threads = [threading.Thread(target=_note, args=(each, connections)) for each in servers]
    for each in threads:
        each.start()
    try:
        yield port, connections
    finally:
        for each in servers:
            # they come in order: who connected before is noted before
            with socket.socket(each.family, each.type) as last:
                last.connect(each.getsockname())
                last.sendall(_LAST.encode())
        for each in threads:
            each.join()
        for each in servers:
            each.close()


def _two_of_one_port() -> tuple[socket.socket, socket.socket]:
    """Return a TCP server and a UDP socket on the same port, which somebody else may have."""
    while True:
        tcp = socket.create_server(("127.0.0.1", 0))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
        else:
            return tcp, udp


def _note(server: socket.socket, connections: list[str]) -> None:
    """Note what each client says first, until the last one comes."""
    while (said := _hear(server)) != _LAST:
        connections.append(said)


def _hear(server: socket.socket) -> str:
    if server.type == socket.SOCK_DGRAM:
        return server.recv(100).decode(errors="replace")
    client, _ = server.accept()
    with client, suppress(OSError):
        client.settimeout(LONG)
        return client.recv(100).decode(errors="replace")
    return ""


def table(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return for every escape what became of it in each sandbox."""
    columns = {name: attempt_all(name) for name in names}
    return {each.name: {name: columns[name][each.name] for name in names} for each in ESCAPES}


def render(results: dict[str, dict[str, dict[str, str]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; `results` has one table for each user."""
    columns = [(user, name) for user in results for name in SANDBOXES]
    yield "| attempt | " + " | ".join(f"{name}, {user}" for user, name in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for escape in ESCAPES:
        cells = (results[user][escape.name][name] for user, name in columns)
        yield f"| {escape.name} | " + " | ".join(cells) + " |"


def main(arguments: Sequence[str]) -> None:
    """Print the table; as root also for nobody."""
    if "--as-nobody" in arguments:
        with nobody():  # in all sandboxes but those that are named
            print(json.dumps(table([each for each in SANDBOXES if each not in arguments])))
        return
    results = {"root" if os.getuid() == 0 else "user": table(tuple(SANDBOXES))}
    if os.getuid() == 0:
        command = [sys.executable, "-m", "tests.safety.escapes", "--as-nobody"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results["nobody"] = json.loads(done.stdout)
    if "--json" in arguments:
        print(json.dumps(results, indent=2))
    else:
        print("\n".join(render(results)))


@contextmanager
def nobody() -> Generator[None, None, None]:
    """Go on as nobody for good, who has a home, a range of IDs, and the image for containers."""
    home = Path(tempfile.mkdtemp(prefix="wink-nobody-"))
    image = _save_image(home / "image")
    _grant_ids(home / "ranges")
    (home / "run").mkdir(mode=0o700)
    for each in (home, home / "run"):
        os.chown(each, NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.environ.update(HOME=str(home), XDG_RUNTIME_DIR=str(home / "run"), STORAGE_DRIVER="overlay")
    os.chdir(home)
    if not os.access(sys.executable, os.X_OK):
        sys.executable = "/usr/bin/python3"  # not in the home of root
    try:
        if image:
            subprocess.run(
                ["podman", "load", "--quiet", "--input", home / "image"], check=True, stdout=2
            )
        yield
    finally:
        if image:
            subprocess.run(["podman", "system", "reset", "--force"], check=False, stdout=2)
        os.chdir("/")
        shutil.rmtree(home, ignore_errors=True)


def _save_image(path: Path) -> bool:
    """Save the first image that containers would use; return whether there is one."""
    if shutil.which("podman") is None:
        return False
    for image in PodmanSandboxConfig().with_environment().images:
        command = ["podman", "save", "--quiet", "--output", str(path), image]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            path.chmod(0o644)
            return True
    return False


def _grant_ids(path: Path) -> None:
    """Give nobody a range of IDs, which podman needs without root; only this process sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    path.write_text(f"nobody:{NOBODY + 1}:{2**16}\n")
    path.chmod(0o644)
    for each in ("/etc/subuid", "/etc/subgid"):
        if Path(each).exists():
            subprocess.run(["mount", "--bind", str(path), each], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
