"""The fork server of an engine: a process that forks workers, each confined for good.

It imports the engine's program once, and forks a worker for every request. A worker confines
itself before it reads any code: its own session, resource limits, no capabilities, Landlock,
seccomp. The server never runs code of a model.

Nothing survives: the kernel kills a worker when the server dies. When the process that
started the server dies, or closes the socket, the server kills everything below it and exits.
It is a subreaper, so that a process that lost its worker is still below it.

A program is a module with the names of `Program`. A worker of a reusable program serves one
evaluation after the other; any other worker exits after one.
"""

import builtins
import fcntl
import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from weakincentives.contrib.evaluation.driver import MAX_MESSAGE, MAX_REPLY, encode
from weakincentives.contrib.evaluation.worker import confinement
from weakincentives.posix import child_process
from weakincentives.posix.frames import FrameError, receive_frame, send_frame
from weakincentives.sandbox.process_tree import kill_descendants

_UNWANTED = ("numpy", "numpy_financial")  # asteval imports them if it can, which takes long
_NAME = b"wink-evaluate"
_CONNECTION, _RULESET, _FREE, _MAX_DESCRIPTOR = 3, 4, 16, 1024


class Program(Protocol):
    """The module that runs code in a worker."""

    MODULES: Sequence[str]

    def start(self, options: Mapping[str, Any]) -> Any:
        """Start what evaluations share; its result is passed to `evaluate`."""
        ...

    def evaluate(self, started: Any, request: Mapping[str, Any], host: "Host") -> dict[str, Any]:
        """Run the code; return what the protocol calls an outcome."""
        ...


class Host:
    """The other side of the connection, as the code of one evaluation can use it."""

    def __init__(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        """Serve one evaluation."""
        self._connection = connection
        self._lock = threading.Lock()
        limit: int = request["limits"]["max_output_length"]
        self._room: dict[str, int] = {"stdout": limit, "stderr": limit}
        self.dropped: dict[str, int] = {"stdout": 0, "stderr": 0}

    @property
    def is_busy(self) -> bool:
        """Whether a message is on its way."""
        return self._lock.locked()

    def print(self, stream: str, text: str) -> None:
        """Send printed text at once, so that it is not lost if this process is killed."""
        kept = text[: self._room[stream]]
        self._room[stream] -= len(kept)
        self.dropped[stream] += len(text) - len(kept)
        if kept:
            clean = kept.encode("utf-8", "backslashreplace").decode()
            with self._lock:
                self._send({"kind": "print", "stream": stream, "text": clean})

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of `FileAccess`.

        Raises:
            OSError: As it says.
            ValueError: The same.
        """
        for each in arguments:
            str(each).encode()  # a lone surrogate cannot be sent
        message = {"kind": "call", "function": function, "arguments": arguments}
        try:
            with self._lock:
                self._send(message)
                reply = _receive(self._connection)
        except FrameError:
            raise ValueError("The text is too long to be written") from None
        if reply is None:
            os._exit(1)
        if "error" in reply:
            name, message = reply["error"]
            raise getattr(builtins, name)(message)
        return reply["value"]

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Send the outcome."""
        with self._lock:
            self._send({"kind": "done", "outcome": {**outcome, "dropped": self.dropped}})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            send_frame(self._connection, encode(message), MAX_MESSAGE)
        except OSError:
            os._exit(1)  # nobody listens


def _receive(connection: socket.socket) -> Any:
    """Return the next message; None if the other side has closed the connection."""
    data = receive_frame(connection, MAX_REPLY)
    return json.loads(data) if data else None


def serve_evaluations(descriptors: Sequence[int], program: Program) -> None:
    """Confine this process, then serve evaluations until the other side closes the connection."""
    connection, ruleset = _keep(descriptors)
    os.setsid()
    options = _receive(connection)
    if options is None:
        return
    try:
        confinement.confine_worker(ruleset)
        if ruleset is not None:
            os.close(ruleset)
        started = program.start(options)
        confinement.seal_worker()
    except OSError as error:
        send_frame(connection, encode({"kind": "refused", "text": str(error)}), MAX_MESSAGE)
        return
    send_frame(connection, encode({"kind": "ready", "pid": os.getpid()}), MAX_MESSAGE)
    while (request := _receive(connection)) is not None:
        host = Host(connection, request)
        host.finish(program.evaluate(started, request, host))
        if not options["is_reusable"]:
            return


def _keep(descriptors: Sequence[int]) -> tuple[socket.socket, int | None]:
    """Close every descriptor but those for this worker, and the standard streams."""
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FREE) for each in descriptors]
    for number, each in enumerate(copies, _CONNECTION):
        os.dup2(each, number, inheritable=False)
    os.closerange(_CONNECTION + len(copies), _MAX_DESCRIPTOR)
    ruleset = _RULESET if len(copies) > 1 else None
    return socket.socket(fileno=_CONNECTION), ruleset


def main(requests: str, parent: str, program: str, *directories: str) -> None:
    """Serve until the parent is gone.

    Args:
        requests: The descriptor of the socket on which requests arrive; with each of them, the
            connection of the new worker and its Landlock ruleset, if there is one.
        parent: The process that started this one.
        program: The module that runs code; see `Program`.
        directories: Where third-party packages are.
    """
    child_process.set_name(_NAME)
    sys.path += directories
    loaded = _load(program)
    server = os.getpid()

    def work(_: bytes, descriptors: list[int]) -> None:
        child_process.die_with(server)
        gc.enable()
        serve_evaluations(descriptors, loaded)

    child_process.serve(int(requests), int(parent), work)
    kill_descendants(server)
    os._exit(0)


def _load(name: str) -> Program:
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
