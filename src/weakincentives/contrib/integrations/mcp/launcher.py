"""The launcher of an MCP server: the server and everything it starts end with the parent.

It is a worker, and supervises the server as it would a command of a sandbox: when the server ends,
when the parent process dies, even by `kill -9`, or on SIGTERM, it kills everything below it and
exits.
"""

import os
import signal
from collections.abc import Sequence

from weakincentives.posix import child_process
from weakincentives.sandbox import supervisor

NOT_STARTED = 127
"""The exit code if the program could not be started."""
_NAME = b"wink-mcp"
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def main(parent: str, *command: str) -> None:
    """Run a command until it ends or the parent is gone.

    Args:
        parent: The process that started this one.
        command: The server's command.
    """
    child_process.set_name(_NAME)
    child_process.become_subreaper()
    (alive,) = child_process.watch(int(parent))
    wakeup = supervisor.wake_on_child()
    child = os.fork()
    if child == 0:
        _execute(command)
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    _release_streams()
    server = supervisor.Supervisor(alive, wakeup, child, 0.0)
    signal.signal(signal.SIGTERM, lambda _number, _frame: server.stop())
    server.run()
    code = -signal.SIGKILL if server.status is None else os.waitstatus_to_exitcode(server.status)
    os._exit(code if code >= 0 else 128 - code)


def _execute(command: Sequence[str]) -> None:
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)
    try:
        os.execvp(command[0], tuple(command))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_STARTED)


def _release_streams() -> None:
    """Let go of the server's streams, so that they are closed when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nothing, each)
