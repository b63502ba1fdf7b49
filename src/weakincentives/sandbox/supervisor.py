"""Runs one command and sees to it that nothing of it is left: a program of its own.

It is started as a script, so it imports nothing but the standard library. On Linux it
is a subreaper: whatever the command starts, in whatever session, stays below this process,
and no child left means that nothing is left. Everything is ended when the command has
ended, when that is asked for, and when whoever asked is gone: in the last two cases the
control socket comes to its end.
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
"""Seconds that processes have to end by themselves when the command has ended."""

FORCE = 5.0
"""Seconds for killing what does not end; only the kernel can hold it up that long."""

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NAME = b"wink-sandbox"
_LOOK = 0.02
_HAS_PROC = os.path.exists("/proc/self/stat")  # noqa: PTH110 # pathlib takes long to import
_HEADER = 10
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Supervisor:
    """One command, everything that it has started, and how that is brought to an end."""

    def __init__(self, control: int, waking: int, child: int, grace: float) -> None:
        """Watch over `child`, a child of this process; `waking` can be read when one has ended."""
        self.status: int | None = None
        self._control = control
        self._child = child
        self._grace = grace
        self._is_told = False
        self._is_alone = False
        self._waking = waking
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._waking, select.POLLIN)

    def run(self) -> None:
        """Return when nothing is left."""
        self._reap()
        while self.status is None and not (self._is_told or self._is_alone):
            self._wait(None)
        is_left = 0
        if self.status is not None:
            self._tell(f"exit {self.status}")
            self._wait_until_alone(LINGER)
            is_left = 0 if self._is_alone else len(list(live_processes(below(os.getpid()))))
            self._end()
        else:
            self._end()
            if self.status is not None:
                self._tell(f"exit {self.status}")
        if self._is_alone:
            self._tell(f"done {is_left}")

    def _end(self) -> None:
        """Ask everything to end, and then end it."""
        if not _HAS_PROC:
            self._end_group()
        if self._is_alone:
            return
        found = below(os.getpid())
        send(found, signal.SIGTERM)
        send(found, signal.SIGCONT)  # what is stopped cannot listen
        self._wait_until_alone(self._grace)
        until = time.monotonic() + FORCE
        while not self._is_alone and time.monotonic() < until:
            kill_below(os.getpid())
            self._wait(_LOOK)

    def _end_group(self) -> None:
        """Do what can be done without /proc: end the process group of the command."""
        send([-self._child], signal.SIGTERM)
        self._wait_until_alone(self._grace)
        send([-self._child], signal.SIGKILL)

    def _wait_until_alone(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_alone and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, seconds: float | None) -> None:
        """Wait for a process to end, or to be told to end everything."""
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._control:
                self._is_told = True
                self._poll.unregister(self._control)
            else:
                os.read(self._waking, 4096)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == 0:
                return
            if pid == self._child:
                self.status = status

    def _tell(self, message: str) -> None:
        try:  # noqa: SIM105 # contextlib takes long to import
            os.write(self._control, message.encode() + b"\n")
        except OSError:
            pass  # nobody is there to be told


def main(control: int, directory: int) -> None:
    """Run the command that the control socket tells of, in an open directory."""
    for each in (control, directory):
        os.set_inheritable(each, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    waking = _wake_on_child()  # before there is one: whoever started this may have ignored them
    _become_subreaper()
    argv, env, grace = marshal.loads(_received(control))
    faults, failing = os.pipe()
    waiting, beginning = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(beginning)
        begin(argv, env, directory, waiting, failing)
    # it is known before it can do anything, so whatever happens to this process
    os.write(control, f"started {child}\n".encode())
    os.write(beginning, b"!")
    for each in (failing, waiting, beginning, directory):
        os.close(each)
    fault = os.read(faults, 16)
    if fault:
        os.write(control, b"fault " + fault + b"\n")
        return
    _let_go_of_streams()
    Supervisor(control, waking, child, grace).run()


def begin(
    argv: tuple[str, ...], env: Mapping[str, str], directory: int, waiting: int, failing: int
) -> None:
    """Become the command, in a session of its own; if that fails, tell the number of the error.

    It is negative if not the program but the directory cannot be used.
    """
    fault, sign = errno.EINVAL, -1
    try:
        os.setsid()
        os.fchdir(directory)
        sign = 1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_DFL)
        if os.read(waiting, 1):
            os.execvpe(argv[0], argv, env)
    except OSError as error:
        fault = error.errno or fault
    finally:
        os.write(failing, str(sign * fault).encode())
        os._exit(127)


def below(pid: int) -> set[int]:
    """Return the processes that descend from one."""
    children: dict[int, list[int]] = {}
    for each, _, parent, _ in processes():
        children.setdefault(parent, []).append(each)
    found: set[int] = set()
    pending = [pid]
    while pending:
        fresh = [each for each in children.get(pending.pop(), ()) if each not in found]
        found.update(fresh)
        pending += fresh
    return found


def members(session: int) -> set[int]:
    """Return the processes of a session."""
    return {pid for pid, _, _, its in processes() if its == session}


def live_processes(found: Iterable[int]) -> Iterator[int]:
    """Yield those that have not ended and merely wait for somebody to notice."""
    wanted = set(found)
    return (pid for pid, state, _, _ in processes() if pid in wanted and state not in "ZX")


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield the number, state, parent and session of every process that can be seen."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 # pathlib takes long to import
    except OSError:
        return
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 # pathlib takes long to import
                text = file.read()
        except OSError:
            continue  # it has ended meanwhile
        state, parent, _, session = text[text.rindex(b")") + 2 :].split(None, 4)[:4]
        yield int(name), state.decode(), int(parent), int(session)


def kill_below(pid: int) -> None:
    """Kill what descends from a process."""
    _kill(lambda: below(pid))


def kill_session(session: int) -> None:
    """Kill the processes of a session, and wait until they are gone: no child of ours ends."""
    until = time.monotonic() + FORCE
    while any(live_processes(members(session))) and time.monotonic() < until:
        _kill(lambda: members(session))
        time.sleep(_LOOK)


def _kill(find: Callable[[], set[int]]) -> None:
    """Kill processes; they are stopped first, so that none of them can start another."""
    frozen: set[int] = set()
    while fresh := find() - frozen:
        send(fresh, signal.SIGSTOP)
        frozen |= fresh
    send(frozen, signal.SIGKILL)


def send(found: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they are there and it is allowed."""
    for pid in found:
        try:  # noqa: SIM105 # contextlib takes long to import
            os.kill(pid, number)
        except OSError:
            pass


def _become_subreaper() -> None:
    """Have orphans handed to this process, where the kernel can do that."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_NAME, _NAME, 0, 0, 0)  # so that `pkill python` means others


def _received(control: int) -> bytes:
    size = int(_exactly(control, _HEADER))
    return _exactly(control, size)


def _exactly(control: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(control, size - len(data))
        if not more:
            os._exit(1)  # whoever asked is gone
        data += more
    return data


def _wake_on_child() -> int:
    """Return a descriptor that can be read when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)  # a handler, or nothing is written
    return reading


def _ignore(number: int, frame: object) -> None:
    """Do nothing: what was written to the descriptor says it all."""


def _let_go_of_streams() -> None:
    """Close what the command reads and prints to; others wait for their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
