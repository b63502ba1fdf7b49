"""Process supervisor: runs one command and stops every process that it started.

It runs as a script in a separate process, so it imports only the standard library. On Linux
it is a subreaper: orphans of any session become its children, so when it has no child left,
nothing is left. It stops everything when the command exits, when it is asked to, and when
the parent process dies; in the last two cases the control socket is closed.
"""

import ctypes
import errno
import marshal
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

LINGER = 0.5
"""Seconds for remaining processes to exit by themselves after the command has exited."""

KILL_TIMEOUT = 5.0
"""Seconds to wait for killed processes; only the kernel can delay them that long."""

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NAME = b"wink-sandbox"
_POLL_INTERVAL = 0.02
_HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 # pathlib takes long to import
_HEADER_SIZE = 10
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """Watches one command and its descendants, and stops them."""

    def __init__(self, control: int, wakeup: int, child: int, grace: float) -> None:
        """Watch `child`, a child of this process; `wakeup` becomes readable when a child exits."""
        self.status: int | None = None
        self._control = control
        self._child = child
        self._grace = grace
        self._stop_requested = False
        self._has_no_children = False
        self._wakeup = wakeup
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)

    def run(self) -> None:
        """Run until no process is left."""
        self._reap()
        while self.status is None and not (self._stop_requested or self._has_no_children):
            self._wait(None)
        remaining = 0
        if self.status is not None:
            self._report(f"exit {self.status}")
            self._wait_for_children(LINGER)
            if not self._has_no_children:
                remaining = len(list(live_processes(descendants(os.getpid()))))
            self._stop()
        else:
            self._stop()
            if self.status is not None:
                self._report(f"exit {self.status}")
        if self._has_no_children:
            self._report(f"done {remaining}")

    def _stop(self) -> None:
        """Terminate all processes, then kill those that remain."""
        if not _HAS_PROC:
            self._stop_group()
        if self._has_no_children:
            return
        found = descendants(os.getpid())
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
        """Wait until a child exits or a stop is requested."""
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._control:
                self._stop_requested = True
                self._poll.unregister(self._control)
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

    def _report(self, message: str) -> None:
        try:  # noqa: SIM105 # contextlib takes long to import
            os.write(self._control, message.encode() + b"\n")
        except OSError:
            pass  # the parent is gone


def main(control: int, directory: int) -> None:
    """Run the command received on the control socket, in an open directory."""
    for each in (control, directory):
        os.set_inheritable(each, False)  # noqa: FBT003 # positional-only in the standard library
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    wakeup = _wake_on_child()  # before the fork: the parent may have ignored SIGCHLD
    _become_subreaper()
    argv, env, grace = marshal.loads(_read_command(control))
    error_reader, error_writer = os.pipe()
    start_reader, start_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start_writer)
        execute(argv, env, directory, start_reader, error_writer)
    # report the child before it may run, so that it can be killed even if this process dies
    os.write(control, f"started {child}\n".encode())
    os.write(start_writer, b"!")
    for each in (error_writer, start_reader, start_writer, directory):
        os.close(each)
    fault = os.read(error_reader, 16)
    if fault:
        os.write(control, b"fault " + fault + b"\n")
        return
    _detach_streams()
    Supervisor(control, wakeup, child, grace).run()


def execute(
    argv: tuple[str, ...],
    env: Mapping[str, str],
    directory: int,
    start_reader: int,
    error_writer: int,
) -> None:
    """Become the command in a new session; on failure, write the error number.

    The number is negative if the directory, not the program, cannot be used.
    """
    fault, sign = errno.EINVAL, -1
    try:
        os.setsid()
        os.fchdir(directory)
        sign = 1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_DFL)
        if os.read(start_reader, 1):
            os.execvpe(argv[0], argv, env)
    except OSError as error:
        fault = error.errno or fault
    finally:
        os.write(error_writer, str(sign * fault).encode())
        os._exit(127)


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
    _kill(lambda: descendants(pid))


def kill_session(session: int) -> None:
    """Kill the processes of a session and poll until they are gone: they are not our children."""
    until = time.monotonic() + KILL_TIMEOUT
    while any(live_processes(session_members(session))) and time.monotonic() < until:
        _kill(lambda: session_members(session))
        time.sleep(_POLL_INTERVAL)


def _kill(find: Callable[[], set[int]]) -> None:
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


def _become_subreaper() -> None:
    """Adopt orphaned descendants, where the kernel supports it."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_NAME, _NAME, 0, 0, 0)  # so that `pkill python` does not hit it


def _read_command(control: int) -> bytes:
    size = int(_read_exactly(control, _HEADER_SIZE))
    return _read_exactly(control, size)


def _read_exactly(control: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(control, size - len(data))
        if not more:
            os._exit(1)  # the parent is gone
        data += more
    return data


def _wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child exits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)  # without a handler, nothing is written
    return reader


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the byte written to the wakeup descriptor is enough."""


def _detach_streams() -> None:
    """Close the command's standard streams here, so that readers see their end."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
