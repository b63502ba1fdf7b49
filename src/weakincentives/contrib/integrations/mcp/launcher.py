"""The launcher of an MCP server: the server and everything it starts end with the parent.

It runs as a script in a process of its own (`python -I -S`) and imports only the standard
library. It is a subreaper, so that a process that lost its parent is still below it. When the
server ends, when the parent process dies, even by `kill -9`, or on SIGTERM, it kills everything
below it and exits.
"""

import ctypes
import os
import select
import signal
import sys
import types

NOT_STARTED = 127
"""The exit code if the program could not be started."""
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NAME = b"wink-mcp"
_KILL_TIMEOUT = 4  # seconds
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
_libc = ctypes.CDLL(None, use_errno=True)


def main(parent: int, root: str, command: list[str]) -> None:
    """Run a command until it ends or the parent is gone.

    Args:
        parent: The process that started this one.
        root: The directory that contains this package.
        command: The server's command.
    """
    _libc.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    alive = os.pidfd_open(parent)
    if os.getppid() != parent:
        os._exit(1)
    signals, writer = os.pipe()
    os.set_blocking(signals, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for each in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(each, _ignore)  # without a handler, nothing is written
    child = os.fork()
    if child == 0:
        _execute(command)
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    _release_streams()
    supervisor = _import_supervisor(root)
    code = _wait(child, alive, signals)
    supervisor.kill_descendants(os.getpid())
    signal.alarm(_KILL_TIMEOUT)  # ends this process if the kernel delays one of them
    _wait_for_all()
    os._exit(code)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the byte written to the wakeup descriptor is enough."""


def _execute(command: list[str]) -> None:
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _release_streams() -> None:
    """Let go of the server's streams, so that they are closed when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nothing, each)


def _wait(child: int, alive: int, signals: int) -> int:
    """Return the server's exit code, or that of a killed process if it has to be stopped."""
    poll = select.poll()
    for each in (alive, signals):
        poll.register(each, select.POLLIN)
    while True:
        code = _reap(child)
        if code is not None:
            return code
        ready = [each for each, _ in poll.poll()]
        if alive in ready or signal.SIGTERM in os.read(signals, 1024):
            return 128 + signal.SIGKILL


def _wait_for_all() -> None:
    """Wait until there is no process left below this one."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def _reap(child: int) -> int | None:
    """Reap all processes that have ended; return the exit code of `child` if it is one of them."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = _exit_code(ended[1])
    except ChildProcessError:
        pass
    return code


def _import_supervisor(root: str) -> types.ModuleType:
    for name in ("weakincentives", "weakincentives.sandbox"):
        package = types.ModuleType(name)  # without running its `__init__`, which takes long
        package.__path__ = [os.path.join(root, *name.split("."))]  # noqa: PTH118 # pathlib takes long to import
        sys.modules[name] = package
    __import__("weakincentives.sandbox.supervisor")
    return sys.modules["weakincentives.sandbox.supervisor"]


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
