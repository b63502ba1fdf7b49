"""Worker processes: modules of this package in processes of their own, and how they are started.

A worker has no environment, no terminal and no directory. It imports its module without running
the `__init__` of the packages around it, which would import everything and take most of a second.
It ends when its connection is closed, which also happens if this process is killed.

A part of it runs inside containers, so it imports only the standard library.
"""

import errno
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 # pathlib takes long to import
"""The directory that contains this package."""

_BOOTSTRAP = """
import os, sys
root, module, *arguments = sys.argv[1:]
class Packages:
    def find_spec(name, path, target=None):
        place = os.path.join(root, *name.split("."))
        if name.startswith("weakincentives") and os.path.isdir(place):
            spec = type(sys.__spec__)(name, None, is_package=True)
            spec.submodule_search_locations.append(place)
            return spec
sys.meta_path.insert(0, Packages)
__import__(module)
sys.modules[module].main(*arguments)
"""


def worker_command(module: str, *arguments: str, uses_packages: bool = False) -> list[str]:
    """Return the command of a worker: Python with a module whose `main` gets the arguments.

    Args:
        module: The full name of the module.
        arguments: What `main` is called with.
        uses_packages: Whether it can import what is installed, which takes longer to start.
    """
    options = ("-I",) if uses_packages else ("-I", "-S")
    return [sys.executable, *options, "-c", _BOOTSTRAP, ROOT, module, *arguments]


def start_worker(
    command: Sequence[str], *, stdin: int = subprocess.DEVNULL, passed: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a worker; an interrupt at the terminal is not for it.

    Args:
        command: As `worker_command` returns it.
        stdin: Its standard input; a socket, for one that answers.
        passed: More descriptors that it inherits.

    Raises:
        OSError: No process could be created.
    """
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=passed,
        start_new_session=True,
        env={},
        cwd="/",
    )


def is_readable(descriptor: int | socket.socket, seconds: float = 0.0) -> bool:
    """Return whether there is something to read, or its end, at the latest after `seconds`."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def has_exited(pid: int, seconds: float = 0.0) -> bool:
    """Return whether a process has exited, at the latest after `seconds`.

    It need not be a child of this one. Where it cannot be told, it has not.
    """
    if sys.platform != "linux":
        return False
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    try:
        return is_readable(process, seconds)
    finally:
        os.close(process)


class ServerProcess(Protocol):
    """The process of a fork server."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def poll(self) -> int | None:
        """Return None while it runs."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...

    def wait(self) -> int:
        """Wait until it is gone."""
        ...


EndWorkers: TypeAlias = Callable[[ServerProcess | None], object]
"""Ends what a server has forked; None if this process is a fork, and they are its parent's."""


class ForkServer(ABC):
    """A process that forks workers: started by the first request, and ended with this object.

    If it was killed, the next request starts another one. A fork of this process has a server of
    its own. Thread-safe.
    """

    def __init__(self, end_workers: EndWorkers) -> None:
        """Start nothing yet.

        `end_workers` is called before the process ends; it must not refer to this object.
        """
        self._end_workers = end_workers
        self._lock = threading.RLock()  # a signal handler may close it
        self._requests: socket.socket | None = None
        self._process: ServerProcess | None = None
        self._end: Callable[[], object] = partial(end_workers, None)
        self._owner = os.getpid()

    @property
    def pid(self) -> int:
        """The number of the process; 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, and it is alive."""
        return self._process is not None and self._process.poll() is None

    def connect(self) -> socket.socket:
        """Return the connection to the server; start it if there is none.

        Raises:
            OSError: No process could be created.
        """
        with self._lock:
            self.forget_if_forked()
            if self._requests is None:
                local, remote = socket.socketpair()
                with remote:
                    try:
                        self._process = self._start(remote.fileno())
                    except BaseException:
                        local.close()
                        raise
                self._requests = local
                self._end = weakref.finalize(
                    self, _end_server, local, self._process, self._end_workers, os.getpid()
                )
            return self._requests

    def launch(self, descriptors: Sequence[int], request: bytes = b"!") -> None:
        """Fork a process that gets these descriptors.

        Raises:
            OSError: No process could be created, or the server starts and exits at once.
        """
        with self._lock:
            for _ in range(2):
                try:
                    socket.send_fds(self.connect(), [request], descriptors)
                except ConnectionError:
                    self.close()
                else:
                    return
        raise OSError(f"the fork server did not start; check that {sys.executable} runs")

    def close(self) -> None:
        """End it; the next request starts another one. Idempotent."""
        with self._lock:
            self.forget_if_forked()
            # another server may have another network, so its workers end with it
            self._requests = self._process = None
            self._end()

    @abstractmethod
    def _start(self, requests: int) -> ServerProcess:
        """Start a process that reads requests from the socket with this descriptor."""

    def forget_if_forked(self) -> None:
        """Leave the server to the process that has started it, if this is a fork of it.

        With a server of its own, a fork cannot take workers of the other process for orphans.
        """
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._requests = self._process = None
            self._end()


def _end_server(
    requests: socket.socket, process: ServerProcess, end_workers: EndWorkers, owner: int
) -> None:
    is_owner = os.getpid() == owner  # in a fork it is not a child, and still serves the owner
    end_workers(process if is_owner else None)
    requests.close()
    if is_owner:
        process.kill()  # forks hold the socket too, so it may not see the end of it
        process.wait()
