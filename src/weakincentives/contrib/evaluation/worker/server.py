"""The fork server of an engine: a process that forks workers, each confined for good.

It runs as a script in a process of its own (`python -I -S`), imports the engine's program once,
and forks a worker for every request. A worker confines itself before it reads any code: its
own session, resource limits, no capabilities, Landlock, seccomp. The server never runs code
of a model.

Nothing survives: the kernel kills a worker when the server dies. When the process that
started the server dies, or closes the socket, the server kills everything below it and exits.
It is a subreaper, so that a process that lost its worker is still below it.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_MAX_DESCRIPTORS = 4
_PACKAGES = (
    "weakincentives",
    "weakincentives.contrib",
    "weakincentives.contrib.evaluation",
    "weakincentives.contrib.evaluation.worker",
    "weakincentives.sandbox",
)
_UNWANTED = ("numpy", "numpy_financial")  # asteval imports them if it can, which takes long
_NAME = b"wink-evaluate"
_libc = ctypes.CDLL(None, use_errno=True)


def skip_package_imports(root: str) -> None:
    """Make modules of this package importable without running any `__init__`.

    Those would import everything, which takes most of a second, and none of it is needed here.
    """
    for name in _PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split("."))]  # noqa: PTH118 # pathlib takes long to import
        sys.modules[name] = package


def main(requests: int, parent: int, root: str, program: str, directories: Sequence[str]) -> None:
    """Serve until the parent is gone.

    Args:
        requests: The socket on which each request arrives: one byte with descriptors, the
            connection of the new worker and its Landlock ruleset, if there is one.
        parent: The process that started this one.
        root: The directory that contains this package.
        program: The module that runs code; see `worker.main`.
        directories: Where third-party packages are.
    """
    _libc.prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(each, signal.SIG_IGN)  # the kernel reaps workers
    alive = _watch(parent)
    sys.path += directories
    skip_package_imports(root)
    worker = _import("weakincentives.contrib.evaluation.worker.session")
    loaded = _load(program)
    supervisor = _import("weakincentives.sandbox.supervisor")
    server = socket.socket(fileno=requests)
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(alive, select.POLLIN)
    while all(each != alive for each, _ in poll.poll()):
        data, descriptors, _, _ = socket.recv_fds(server, 1, _MAX_DESCRIPTORS)
        if not data:
            break
        if os.fork() == 0:
            server.close()
            _die_with(os.getppid())
            worker.main(descriptors, loaded)
            os._exit(0)
        for each in descriptors:
            os.close(each)
    supervisor.kill_descendants(os.getpid())
    os._exit(0)


def _load(program: str) -> types.ModuleType:
    """Import the program, and what its workers share."""
    for each in _UNWANTED:
        sys.modules[each] = None  # type: ignore[assignment] # importing it raises ImportError
    loaded = _import(program)
    for each in _UNWANTED:
        del sys.modules[each]
    for each in loaded.MODULES:
        with suppress(ImportError):  # not every Python has all of them
            _import(each)
    gc.freeze()  # what is shared with the workers is not copied by their collector
    return loaded


def _watch(parent: int) -> int:
    """Return a descriptor that becomes readable when the parent dies."""
    alive = os.pidfd_open(parent)
    if os.getppid() != parent:
        os._exit(1)
    return alive


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _import(name: str) -> types.ModuleType:
    __import__(name)
    return sys.modules[name]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
