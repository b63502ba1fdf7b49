"""A worker: one process that runs code, and reports to the process that asked for it.

A program is a module with `start`, `evaluate`, `IS_REUSABLE` and `HAS_THREADS`. A worker of a
reusable program serves one evaluation after the other; any other worker exits after one.
"""

import fcntl
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weakincentives.contrib.evaluation.worker import confinement
from weakincentives.contrib.evaluation.worker.protocol import (
    MAX_MESSAGE,
    MAX_REPLY,
    FrameError,
    receive_message,
    send_frame,
)

_CONNECTION, _RULESET, _FREE, _MAX_DESCRIPTOR = 3, 4, 16, 1024
_MAX_ERROR = 4_000  # characters of a message
_ERRORS: Mapping[str, type[Exception]] = {
    each.__name__: each
    for each in (
        *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError),
        *(PermissionError, OSError, ValueError, UnicodeDecodeError, RuntimeError),
    )
}


class Program(Protocol):
    """The module that runs code in a worker."""

    IS_REUSABLE: bool
    HAS_THREADS: bool

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
        self._room = {"stdout": request["max_output"], "stderr": request["max_output"]}
        self.dropped: dict[str, int] = {"stdout": 0, "stderr": 0}

    def print(self, stream: str, text: str) -> None:
        """Send printed text at once, so that it is not lost if this process is killed."""
        kept = text[: self._room[stream]]
        self._room[stream] -= len(kept)
        self.dropped[stream] += len(text) - len(kept)
        if kept:
            clean = kept.encode("utf-8", "backslashreplace").decode()
            self._send({"kind": "print", "stream": stream, "text": clean})

    def call(self, function: str, *arguments: object) -> Any:
        """Call a function of `FileAccess`.

        Raises:
            OSError: As it says.
            ValueError: The same.
        """
        for each in arguments:
            str(each).encode()  # a lone surrogate cannot be sent
        try:
            self._send({"kind": "call", "function": function, "arguments": arguments})
        except FrameError:
            raise ValueError("The text is too long to be written") from None
        reply = receive_message(self._connection, MAX_REPLY)
        if reply is None:
            os._exit(1)
        if "error" in reply:
            name, message = reply["error"]
            raise _ERRORS.get(name, ValueError)(message)
        return reply["value"]

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Send the outcome."""
        self._send({"kind": "done", "outcome": {**outcome, "dropped": self.dropped}})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            send_frame(self._connection, message, MAX_MESSAGE)
        except OSError:
            os._exit(1)  # nobody listens


def describe_error(error: BaseException, line: int | None) -> dict[str, Any]:
    """Return an error of the code as the protocol has it."""
    text = str(error.msg) if isinstance(error, SyntaxError) else _message(error)
    clean = text[:_MAX_ERROR].encode("utf-8", "backslashreplace").decode()
    return {"type": type(error).__name__, "message": clean, "line": line}


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 # a class of the code may have any `__str__`
        return ""


def main(descriptors: Sequence[int], program: Program) -> None:
    """Confine this process, then serve evaluations until the other side closes the connection."""
    connection, ruleset = _keep(descriptors)
    os.setsid()
    options = receive_message(connection, MAX_REPLY)
    if options is None:
        return
    confinement.confine_worker(ruleset, options["address_space"])
    if ruleset is not None:
        os.close(ruleset)
    started = program.start(options)
    confinement.seal_worker(has_threads=program.HAS_THREADS)
    send_frame(connection, {"kind": "ready", "pid": os.getpid()}, MAX_MESSAGE)
    while (request := receive_message(connection, MAX_REPLY)) is not None:
        host = Host(connection, request)
        host.finish(program.evaluate(started, request, host))
        if not program.IS_REUSABLE:
            return


def _keep(descriptors: Sequence[int]) -> tuple[socket.socket, int | None]:
    """Close every descriptor but those for this worker, and the standard streams."""
    copies = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FREE) for each in descriptors]
    for number, each in enumerate(copies, _CONNECTION):
        os.dup2(each, number, inheritable=False)
    os.closerange(_CONNECTION + len(copies), _MAX_DESCRIPTOR)
    ruleset = _RULESET if len(copies) > 1 else None
    return socket.socket(fileno=_CONNECTION), ruleset
