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

import errno
import fcntl
import marshal
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence

from weakincentives.posix.child_process import (
    IGNORED,
    Confinement,
    become_subreaper,
    check,
    close_all,
    confine,
    drop_privileges,
    libc,
    move_up,
    serve,
    set_name,
)
from weakincentives.posix.frames import receive_descriptors, receive_frame
from weakincentives.sandbox.attribute_calls import AttributeCalls
from weakincentives.sandbox.process_tree import (
    KILL_TIMEOUT,
    POLL_INTERVAL,
    descendants,
    kill_descendants,
    live_processes,
    send,
)

LINGER = 0.5
"""Seconds for remaining processes to exit by themselves after the command has exited."""

SUPERVISE, LISTEN = b"!", b"@"
"""The requests to a fork server: supervise commands, open the proxy's port for a command."""

PROXY_PORT = 3128
"""The port of the proxy in a network namespace that no other command uses."""

MAX_COMMAND = 256 * 1024 * 1024
"""Bytes of a command with its arguments and its environment; the kernel allows far less."""

ISOLATED = b"+"
"""What a fork server writes if its commands share a network namespace of their own."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_BACKLOG = 128
_ignored_signals: list[int] = []  # found out once, because it takes longer than a fork
_processors: set[int] = set()  # before any command could change them
_NAME = b"wink-sandbox"
_HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 # pathlib takes long to import
_BLOCK = 64 * 1024


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
            self._wait(POLL_INTERVAL)

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


def serve_commands(requests: int, parent: int = 0) -> None:
    """Serve the requests `SUPERVISE` (see `supervise`) and `LISTEN` (see `open_port`)."""
    handlers = {SUPERVISE: supervise, LISTEN: open_port}
    _ignored_signals.extend(
        each
        for each in map(int, signal.valid_signals())
        if each in IGNORED or signal.getsignal(each) == signal.SIG_IGN
    )
    if sys.platform == "linux":
        _processors.update(os.sched_getaffinity(0))
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
            drop_privileges()  # this process makes calls for the command
            *writable, listener = received
            calls = AttributeCalls(listener, writable)
        wrapper = child if is_wrapped else None
        return Supervisor(control, wakeup, child, grace, wrapper, calls).run()
    finally:
        close_all(received)


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
    argv, env, grace, settings = marshal.loads(data)
    directory, *streams = descriptors[:4]
    confinement = Confinement(*settings).with_descriptors(descriptors[4:])
    outcome = move_up(outcome)
    with socket.socket(fileno=os.dup(outcome)) as supervisor:
        text = f"{grace!r} {int(confinement.is_wrapped)}\n".encode()
        socket.send_fds(supervisor, [text], confinement.writable)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    execute(argv, env, directory, confinement, outcome, problem)


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
    check(libc.setns(owner, _CLONE_NEWUSER))  # whoever created it has its capabilities
    check(libc.setns(namespace, _CLONE_NEWNET))


def isolate_network() -> None:
    """Move this process to a network namespace of its own, with nothing but loopback.

    Everything that it starts shares the namespace, so a command can reach the server that
    another one runs.

    Raises:
        OSError: The kernel refused; this process may be in a user namespace of its own.
    """
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) != 0:
        check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
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
        libc.signal(each, None)  # the module's own function takes 50 times as long
    for each in groups:
        os.write(each, b"0")  # moves the writer


def execute(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    directory: int,
    confinement: Confinement,
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
        confine(confinement, outcome)
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
