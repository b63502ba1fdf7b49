"""Process supervisor: runs commands and stops every process that they started.

It runs in a separate process that imports only the standard library. That process
is a fork server: it starts once for a sandbox, and forks a supervisor for every command that
runs at the same time. A supervisor forks the process of its next command before there is
one, because forks and control groups take longer than everything else.

On Linux a supervisor is a subreaper: orphans of any session become its children, so when it has
no child left, nothing is left. It stops everything when the command exits, when it is asked
to, and when the parent process dies; in the last two cases the control socket is closed.

For a command that may use the network, the server also opens a port for the proxy, in its own
network namespace or in that of the command.

Before the command starts, its process confines itself as the request says: resource limits,
capabilities, Landlock, seccomp. It is in the control groups from the beginning.
"""

import ctypes
import errno
import fcntl
import gc
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from weakincentives.posix.frames import receive_descriptors, receive_frame
from weakincentives.sandbox.attribute_calls import AttributeCalls

LINGER = 0.5
"""Seconds for remaining processes to exit by themselves after the command has exited."""

KILL_TIMEOUT = 5.0
"""Seconds to wait for killed processes; only the kernel can delay them that long."""

SUPERVISE, LISTEN = b"!", b"@"
"""The requests to a fork server: supervise commands, open the proxy's port for a command."""

PROXY_PORT = 3128
"""The port of the proxy in a network namespace that no other command uses."""

MAX_COMMAND = 256 * 1024 * 1024
"""Bytes of a command with its arguments and its environment; the kernel allows far less."""

FIRST_PRIVATE = 16
"""Descriptors from here on are closed when the command starts; those below may be its own."""

ISOLATED = b"+"
"""What a fork server writes if its commands share a network namespace of their own."""

_PR_SET_NAME, _PR_CAPBSET_DROP = 15, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SET_MODE_FILTER = 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5  # no signal interrupts a call that has begun
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_BACKLOG = 128
_LANDLOCK_RESTRICT = 446  # the same number on every machine
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)
_ignored_signals: list[int] = []  # found out once, because it takes longer than a fork
_processors: set[int] = set()  # before any command could change them
_NAME = b"wink-sandbox"
_POLL_INTERVAL = 0.02
_HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 # pathlib takes long to import
_BLOCK = 64 * 1024
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """Watches one command and its descendants, and stops them."""

    def __init__(
        self,
        control: int,
        wakeup: int,
        child: int,
        grace: float,
        wrapper: int | None = None,
        calls: AttributeCalls | None = None,
    ) -> None:
        """Watch `child`, a child of this process.

        Args:
            control: The socket for reports; it is closed at the other end to stop everything.
            wakeup: Becomes readable when a child exits.
            child: The process of the command.
            grace: Seconds between SIGTERM and SIGKILL.
            wrapper: The process whose end kills all others at once; it gets no SIGTERM.
            calls: System calls that this process makes for them.
        """
        self.status: int | None = None
        self._control = control
        self._child = child
        self._grace = grace
        self._wrapper = wrapper
        self._stop_requested = False
        self._has_no_children = False
        self._wakeup = wakeup
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        self._calls = calls
        if calls is not None:
            self._poll.register(calls.listener, select.POLLIN)

    def run(self) -> bool:
        """Run until no process is left; return whether there may be another command."""
        self._reap()
        while self.status is None and not (self._stop_requested or self._has_no_children):
            self._wait(None)
        if self.status is not None and self._has_no_children:
            # in one message: each wakes up whoever waits for it
            _report(self._control, f"exit {self.status}\ndone 0")
            return not self._stop_requested
        remaining = 0
        if self.status is not None:
            _report(self._control, f"exit {self.status}")
            self._wait_for_children(LINGER)
            if not self._has_no_children:
                remaining = len(list(live_processes(descendants(os.getpid()))))
            self._stop()
        else:
            self._stop()
            if self.status is not None:
                _report(self._control, f"exit {self.status}")
        if self._has_no_children:
            _report(self._control, f"done {remaining}")
        return self._has_no_children and not self._stop_requested

    def stop(self) -> None:
        """Let `run` stop everything; a signal handler may call it."""
        self._stop_requested = True

    def _stop(self) -> None:
        """Terminate all processes, then kill those that remain."""
        if not _HAS_PROC:
            self._stop_group()
        if self._has_no_children:
            return
        found = descendants(os.getpid()) - {self._wrapper}
        send(found, signal.SIGTERM)
        send(found, signal.SIGCONT)  # a stopped process would not handle SIGTERM
        self._wait_for_children(self._grace)
        until = time.monotonic() + KILL_TIMEOUT
        while not self._has_no_children and time.monotonic() < until:
            kill_descendants(os.getpid())
            self._wait(_POLL_INTERVAL)

    def _stop_group(self) -> None:
        """Stop the command's process group, which is all that works without /proc."""
        send([-self._child], signal.SIGTERM)
        self._wait_for_children(self._grace)
        send([-self._child], signal.SIGKILL)

    def _wait_for_children(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._has_no_children and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, seconds: float | None) -> None:
        """Wait until a child exits, a stop is requested, or a call is to be made."""
        for descriptor, event in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._control:
                self._stop_requested = True
                self._poll.unregister(self._control)
            elif self._calls is not None and descriptor == self._calls.listener:
                if event & select.POLLIN:
                    self._calls.serve()
                else:
                    self._poll.unregister(descriptor)  # no process is left that could make one
            else:
                os.read(self._wakeup, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_no_children = True
                return
            if pid == 0:
                return
            if pid == self._child:
                self.status = status


def serve(requests: int, parent: int, handle: Callable[[bytes, list[int]], object]) -> None:
    """Fork a process for every request, until the parent is gone or has closed the socket.

    Args:
        requests: The socket for requests: each is one byte with descriptors.
        parent: The process that has started this one, if its death has to be watched.
        handle: Called in the new process with the request and the descriptors.
    """
    for each in (*_IGNORED, signal.SIGCHLD):  # the kernel reaps what is forked
        signal.signal(each, signal.SIG_IGN)
    become_subreaper()  # if a supervisor is killed, its orphans can be found here
    _ignored_signals.extend(
        each
        for each in map(int, signal.valid_signals())
        if signal.getsignal(each) == signal.SIG_IGN
    )
    if sys.platform == "linux":
        _processors.update(os.sched_getaffinity(0))
    gc.disable()  # or it would copy the memory of each fork
    watched = [requests, *watch(parent)]
    with socket.socket(fileno=requests) as server:
        while select.select(watched, [], [])[0] == [requests]:
            data, descriptors = receive_descriptors(server, 1)
            if not data:
                return
            if _fork() == 0:
                _close(watched)
                handle(data, descriptors)
                os._exit(0)
            _close(descriptors)


def _fork() -> int:
    """Fork this process; without room for one more, whoever waits for it sees a closed socket."""
    try:
        return os.fork()
    except OSError:
        return -1


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)


def watch(parent: int) -> Sequence[int]:
    """Return a descriptor that becomes readable when the parent dies, where there is one."""
    if not parent or sys.platform != "linux":
        return ()
    alive = os.pidfd_open(parent)
    if os.getppid() != parent:
        os._exit(1)
    return (alive,)


def serve_commands(requests: int, parent: int = 0) -> None:
    """Serve the requests `SUPERVISE` (see `supervise`) and `LISTEN` (see `open_port`)."""
    handlers = {SUPERVISE: supervise, LISTEN: open_port}
    serve(requests, parent, lambda request, descriptors: handlers[request](descriptors))


def supervise(descriptors: Sequence[int]) -> None:
    """Run the commands that are sent to this process, one after the other.

    Args:
        descriptors: The control socket, for reports; the socket on which commands arrive;
            and an open `cgroup.procs` file of each control group that commands join.
    """
    control, commands, *groups = descriptors
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    wakeup = wake_on_child()  # before the fork: SIGCHLD is ignored until now
    os.setsid()
    become_subreaper()
    _report(control, f"supervisor {os.getpid()}")
    while _supervise_one(control, commands, groups, wakeup):
        pass


def _supervise_one(control: int, commands: int, groups: Sequence[int], wakeup: int) -> bool:
    """Run one command; return whether there may be another one."""
    reader, writer = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.close(control)  # or nobody would notice if the supervisor were killed
            reader.close()
            become_command(commands, groups, writer.detach())
        finally:
            os._exit(1)
    writer.close()
    # before it is a command, so that it can be killed even if this process dies
    _report(control, f"ready {child}")
    with reader:
        start, received = _receive_start(reader, control)
    try:
        if start is None:  # nobody needs the process any more, or somebody has killed it
            send([child], signal.SIGKILL)
            _report(control, f"exit {os.waitpid(child, 0)[1]}")
            Supervisor(control, wakeup, child, 0.0).run()  # in case that it had just begun
            return False
        grace, is_wrapped, has_listener, fault = start
        if fault:
            os.waitpid(child, 0)
            _report(control, fault)
            return True
        calls = None
        if has_listener:
            _drop_privileges()  # this process makes calls for the command
            *writable, listener = received
            calls = AttributeCalls(listener, writable)
        wrapper = child if is_wrapped else None
        return Supervisor(control, wakeup, child, grace, wrapper, calls).run()
    finally:
        _close(received)


def _receive_start(
    reader: socket.socket, control: int
) -> tuple[tuple[float, bool, bool, str] | None, list[int]]:
    """Wait until the next command has started or failed to, or nobody needs its process.

    Returns:
        The grace, whether the program is a wrapper, whether it has a listener, and what failed;
        None if there was no command. Then the directories that it may write, and the listener.
    """
    select.select([reader, control], [], [])
    if not select.select([reader], [], [], 0)[0]:
        return None, []
    text, received = receive_descriptors(reader, _BLOCK)
    while text:
        more, descriptors = receive_descriptors(reader, _BLOCK)
        received += descriptors
        if not more:
            break
        text += more
    settings, _, rest = text.decode().partition("\n")
    if not settings:
        return None, received
    grace, is_wrapped = settings.split()
    fault = rest.removeprefix("+")
    return (float(grace), is_wrapped == "1", rest != fault, fault), received


def become_command(commands: int, groups: Sequence[int], outcome: int) -> None:
    """Do what is the same for all commands, wait for one, and become it.

    What the supervisor needs to know of it is written to `outcome` first, and what failed last.
    """
    problem: OSError | None = None
    try:
        _prepare(groups)
    except OSError as error:
        problem = error
    with socket.socket(fileno=commands) as source:
        descriptors: list[int] = []
        data = receive_frame(source, MAX_COMMAND, descriptors)
        if not data:
            os._exit(1)  # the parent is gone
    argv, env, grace, confinement = marshal.loads(data)
    directory, *streams = descriptors[:4]
    settings = (confinement, descriptors[4:])
    outcome = _move_up(outcome)
    with socket.socket(fileno=os.dup(outcome)) as supervisor:
        text = f"{grace!r} {int(confinement['is_wrapped'])}\n".encode()
        positions: Sequence[int] = confinement["writable"]
        socket.send_fds(supervisor, [text], [descriptors[4 + each] for each in positions])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    execute(argv, env, directory, settings, outcome, problem)


def open_port(descriptors: Sequence[int]) -> None:
    """Open a loopback port for a command, and send it to the proxy.

    Args:
        descriptors: The Unix socket to send it on, or else the error number. For another
            network namespace than that of this process: its descriptor; or the pipe on which
            bubblewrap describes the sandbox, and the one on which the command waits for a line.
    """
    courier, *others = descriptors
    waits = len(others) == 2
    with socket.socket(fileno=os.dup(courier)) as proxy:
        try:
            if others:
                _enter_network(_find_network(others[0]) if waits else others[0])
            with socket.socket() as listener:
                # the loopback interface of a new namespace may not be up yet
                listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                listener.bind(("127.0.0.1", PROXY_PORT if waits else 0))
                listener.listen(_BACKLOG)
                socket.send_fds(proxy, [b"0"], [listener.fileno()])
        except OSError as error:
            proxy.sendall(str(error.errno).encode())
            return
    if waits:
        os.write(others[1], b"\n")


def _find_network(info: int) -> int:
    """Return the network namespace of the process that bubblewrap has started."""
    description = b""
    while b"}" not in description and (more := os.read(info, 4096)):
        description += more
    _, _, rest = description.partition(b'"child-pid": ')
    if not rest:
        raise OSError(errno.ECHILD, "bubblewrap failed; its own message says why")
    pid = int(rest.split(b",")[0].split(b"\n")[0])
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter_network(namespace: int) -> None:
    """Enter a network namespace, and the user namespace that owns it."""
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    _check(_libc.setns(owner, _CLONE_NEWUSER))  # whoever created it has its capabilities
    _check(_libc.setns(namespace, _CLONE_NEWNET))


def confine(
    settings: Mapping[str, Any], descriptors: Sequence[int], courier: int | None = None
) -> None:
    """Confine this process and everything it starts, for good.

    Args:
        settings: As `command.Confinement.encode` returns them.
        descriptors: Those that the settings refer to by position.
        courier: The Unix socket to send the listener of the filter on, if it has one.

    Raises:
        OSError: The kernel refused; the command must not run.
    """
    forbidden = settings["forbidden_network"]
    if forbidden is not None and network_namespace() in {forbidden, None}:
        raise OSError(errno.EPERM, "The network of the command is not isolated")
    for kind, limit in settings["limits"]:
        _lower_limit(kind, limit)
    if settings["drops_privileges"]:
        _drop_privileges()
    if settings["ruleset"] is not None:
        _check(_libc.syscall(_LANDLOCK_RESTRICT, descriptors[settings["ruleset"]], 0))
    # these become 3, 4, ...; the ones that they replace are of no use to the command
    inherited: Sequence[int] = settings["inherited"]
    for number, each in enumerate([_move_up(descriptors[each]) for each in inherited], 3):
        os.dup2(each, number)
    if settings["seccomp"]:
        install_filter(settings["seccomp"], courier if settings["writable"] else None)


def network_namespace() -> int | None:
    """Return the inode of this process's network namespace; None if it cannot be told."""
    try:
        return os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 # pathlib takes long to import
    except OSError:
        return None


def isolate_network() -> None:
    """Move this process to a network namespace of its own, with nothing but loopback.

    Everything that it starts shares the namespace, so a command can reach the server that
    another one runs.

    Raises:
        OSError: The kernel refused; this process may be in a user namespace of its own.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNET) != 0:
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 # as above
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _prepare(groups: Sequence[int]) -> None:
    """Put this process into a session of its own and the control groups, with default signals."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and os.sched_getaffinity(0) != _processors:
        os.sched_setaffinity(0, _processors)  # the last command has changed those of its parent
    for each in _ignored_signals:  # signals with a handler are reset by the kernel
        _libc.signal(each, None)  # the module's own function takes 50 times as long
    for each in groups:
        os.write(each, b"0")  # moves the writer


def execute(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    directory: int,
    confinement: tuple[Mapping[str, Any], Sequence[int]],
    outcome: int,
    problem: OSError | None,
) -> None:
    """Become the command; on failure, write what failed and the error number.

    `unconfined` is a failure of the sandbox, such as a `problem` that there was before. `fault` is
    one of the command: the number is negative if the directory, not the program, cannot be used.
    """
    fault, word, sign = errno.EINVAL, "unconfined", 1
    try:
        if problem is not None:
            raise problem
        word, sign = "fault", -1
        os.fchdir(directory)
        word, sign = "unconfined", 1
        confine(*confinement, outcome)
        word = "fault"
        _execute_from_path(argv, env)
    except OSError as error:
        fault = error.errno or fault
    finally:
        os.write(outcome, f"{word} {sign * fault}".encode())
        os._exit(127)


def _execute_from_path(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Do what `os.execvpe` does, which imports a module in each new process before it begins."""
    program = argv[0]
    if "/" in program:
        os.execve(program, argv, env)
    refused: OSError | None = None
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(directory, program), argv, env)  # noqa: PTH118 # pathlib takes long to import
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, program)


def _move_up(descriptor: int) -> int:
    """Return a duplicate above the numbers that a command inherits."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_PRIVATE)


def _lower_limit(kind: int, limit: int) -> None:
    """Set a resource limit; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (lowest, lowest))


def _drop_privileges() -> None:
    """Give up every capability, and the way to get one back by a set-user-ID program."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)))


def install_filter(
    program: bytes, courier: int | None = None, *, all_threads: bool = False
) -> None:
    """Filter the system calls of this process and everything it starts, for good.

    If the filter notifies, `courier` is the Unix socket on which its listener is sent. Threads
    that run already are filtered only if `all_threads`.
    """
    code = ctypes.create_string_buffer(program, len(program))
    filled = _FilterProgram(len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    flags = int(all_threads) if courier is None else _NEW_LISTENER | _WAIT_KILLABLE
    number = _SECCOMP[os.uname().machine]
    listener = _check(_libc.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(filled)))
    if courier is not None:
        with socket.socket(fileno=os.dup(courier)) as supervisor:
            socket.send_fds(supervisor, [b"+"], [listener])


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "The command cannot be confined")
    return result


def descendants(pid: int) -> set[int]:
    """Return the descendants of a process."""
    children: dict[int, list[int]] = {}
    for each, _, parent, _ in processes():
        children.setdefault(parent, []).append(each)
    found: set[int] = set()
    pending = [pid]
    while pending:
        new = [each for each in children.get(pending.pop(), ()) if each not in found]
        found.update(new)
        pending += new
    return found


def session_members(session: int) -> set[int]:
    """Return the processes of a session."""
    return {pid for pid, _, _, other in processes() if other == session}


def live_processes(pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes that are alive, not zombies."""
    wanted = set(pids)
    return (pid for pid, state, _, _ in processes() if pid in wanted and state not in "ZX")


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield the ID, state, parent and session of every visible process."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 # pathlib takes long to import
    except OSError:
        return
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 # pathlib takes long to import
                text = file.read()
        except OSError:
            continue  # it has exited meanwhile
        state, parent, _, session = text[text.rindex(b")") + 2 :].split(None, 4)[:4]
        yield int(name), state.decode(), int(parent), int(session)


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process."""
    kill_all(lambda: descendants(pid))


def kill_orphans(ancestor: int, server: int, supervisors: set[int]) -> None:
    """Kill what is below a process, except a fork server, its supervisors and all below them."""
    _kill_and_wait(lambda: _orphans(ancestor, {server}, supervisors))


def kill_session(session: int) -> None:
    """Kill the processes of a session."""
    _kill_and_wait(lambda: session_members(session))


def _orphans(ancestor: int, server: set[int], supervisors: set[int]) -> set[int]:
    kept = supervisors.union(server, *map(descendants, supervisors))
    return descendants(ancestor) - kept


def _kill_and_wait(find: Callable[[], set[int]]) -> None:
    """Kill processes and poll until they are gone: they are not our children."""
    until = time.monotonic() + KILL_TIMEOUT
    while any(live_processes(find())) and time.monotonic() < until:
        kill_all(find)
        time.sleep(_POLL_INTERVAL)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill processes; freeze them all first, so that none can fork in the meantime."""
    frozen: set[int] = set()
    while new := find() - frozen:
        send(new, signal.SIGSTOP)
        frozen |= new
    send(frozen, signal.SIGKILL)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; ignore those that are gone or not ours."""
    for pid in pids:
        try:  # noqa: SIM105 # contextlib takes long to import
            os.kill(pid, number)
        except OSError:
            pass


def set_name(name: bytes) -> None:
    """Name this process, so that `pkill python` does not hit it."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def become_subreaper() -> None:
    """Adopt orphaned descendants, where the kernel supports it."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _report(control: int, message: str) -> None:
    try:  # noqa: SIM105 # contextlib takes long to import
        os.write(control, message.encode() + b"\n")
    except OSError:
        pass  # the parent is gone


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child exits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)  # without a handler, nothing is written
    return reader


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the byte written to the wakeup descriptor is enough."""


def main(requests: str, parent: str, greeting: str = "") -> None:
    """Be a fork server.

    Args:
        requests: The descriptor of its socket.
        parent: The process that has started it.
        greeting: The descriptor to write `ISOLATED` to, if commands share a network namespace; if
            that is impossible, it exits.
    """
    set_name(_NAME)
    if greeting:
        isolate_network()
        os.write(int(greeting), ISOLATED)
        os.close(int(greeting))
    serve_commands(int(requests), int(parent))
    os._exit(0)
