"""The fork server of an engine: a process that forks workers, each confined for good.

It imports the engine's program once, and forks a worker for every request. A worker confines
itself before it reads any code: its own session, resource limits, no capabilities, Landlock,
seccomp. The server never runs code of a model.

Nothing survives: the kernel kills a worker when the server dies. When the process that
started the server dies, or closes the socket, the server kills everything below it and exits.
It is a subreaper, so that a process that lost its worker is still below it.
"""

import ctypes
import gc
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from weakincentives.contrib.evaluation.worker import session
from weakincentives.sandbox import supervisor

_PR_SET_PDEATHSIG = 1
_UNWANTED = ("numpy", "numpy_financial")  # asteval imports them if it can, which takes long
_NAME = b"wink-evaluate"
_libc = ctypes.CDLL(None, use_errno=True)


def main(requests: str, parent: str, program: str, *directories: str) -> None:
    """Serve until the parent is gone.

    Args:
        requests: The descriptor of the socket on which requests arrive; with each of them, the
            connection of the new worker and its Landlock ruleset, if there is one.
        parent: The process that started this one.
        program: The module that runs code; see `session.Program`.
        directories: Where third-party packages are.
    """
    supervisor.set_name(_NAME)
    sys.path += directories
    loaded = _load(program)
    server = os.getpid()

    def work(_: bytes, descriptors: list[int]) -> None:
        _die_with(server)
        gc.enable()
        session.main(descriptors, loaded)

    supervisor.serve(int(requests), int(parent), work)
    supervisor.kill_descendants(server)
    os._exit(0)


def _load(name: str) -> session.Program:
    """Import the program, and what its workers share."""
    for each in _UNWANTED:
        sys.modules[each] = None  # type: ignore[assignment] # importing it raises ImportError
    loaded: Any = _import(name)
    for each in _UNWANTED:
        del sys.modules[each]
    for each in loaded.MODULES:
        with suppress(ImportError):  # not every Python has all of them
            _import(each)
    gc.freeze()  # what is shared with the workers is not copied by their collector
    return loaded


def _import(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
