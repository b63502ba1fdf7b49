"""The host's side of the runner: frames over the pipes of `podman run`, and running commands.

A thread reads the frames and passes each to the command or call that it belongs to. The
container is not trusted: a malformed frame ends the connection.
"""

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from weakincentives.posix import write_all
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.container import file_server, runner
from weakincentives.sandbox.output import OutputBuffer
from weakincentives.sandbox.process import RunningCommand
from weakincentives.sandbox.protocol import OutputListener, SandboxUnavailableError

_MAX_EXCERPT = 2_000  # bytes of podman's own errors
_MAX_WAIT = 1e6  # seconds
_EXIT_TIMEOUT = 10.0  # seconds for the container to be removed once the runner has exited
_CHUNK = 64 * 1024
_SUPERVISOR_WORDS = frozenset({"ready", "fault", "unconfined", "exit", "done"})

_Frame: TypeAlias = tuple[int, bytes]
_Channel: TypeAlias = "queue.SimpleQueue[_Frame | None]"  # None: the connection has ended


class RunnerClient:
    """A connection to a runner; thread-safe."""

    def __init__(self, process: "subprocess.Popen[bytes]", program: bytes) -> None:
        """Send the runner to the container of a podman process with pipes."""
        self._process = process
        self._lock = threading.Lock()
        self._numbers = 0
        self._connection = _RunnerConnection(process)
        self._ready: _Channel = self._connection.open(0)
        self.disconnect: Callable[[], bool | None] = weakref.finalize(
            self, _disconnect, process, os.getpid()
        )
        self._connection.start()
        self._write(program)

    def wait_until_ready(self, timeout: float) -> Mapping[str, Any]:
        """Return the runner's facts about the container.

        Raises:
            SandboxUnavailableError: The container did not start in time.
        """
        try:
            frame = self._ready.get(timeout=timeout)
        except queue.Empty:
            raise SandboxUnavailableError(
                f"The container did not start within {timeout:g} seconds: {self.error_text()}"
            ) from None
        if frame is None or frame[0] != runner.READY:
            raise SandboxUnavailableError(f"The container did not start: {self.error_text()}")
        return json.loads(frame[1])

    @property
    def is_alive(self) -> bool:
        """Whether the runner can be used."""
        return self._connection.is_alive

    def error_text(self) -> str:
        """Return what podman has printed to standard error, shortened."""
        return self._connection.error_text()

    def call(self, operation: str, *, data: bytes = b"", **request: object) -> tuple[Any, bytes]:
        """Run a file operation; return its value and data.

        Raises:
            OSError: The operation failed in the container.
            SandboxUnavailableError: The container is gone.
        """
        number, channel = self.open_channel()
        try:
            self.send(number, runner.CALL, file_server.pack({"op": operation, **request}, data))
            frame = channel.get()
        finally:
            self._connection.close_channel(number)
        if frame is None:
            raise self.lost_error()
        reply, data = _decode(frame[1])
        if "errno" in reply:
            raise OSError(reply["errno"], os.strerror(reply["errno"]))
        return reply.get("value"), data

    def open_channel(self) -> "tuple[int, _Channel]":
        """Return a new number and the queue for its frames."""
        with self._lock:
            self._numbers += 1
            return self._numbers, self._connection.open(self._numbers)

    def close_channel(self, number: int) -> None:
        """Ignore further frames with this number."""
        self._connection.close_channel(number)

    def send(self, number: int, kind: int, payload: bytes = b"") -> None:
        """Send a frame; if the container is gone, the channel says so."""
        self._write(runner.encode_message(number, kind, payload))

    def lost_error(self) -> SandboxUnavailableError:
        """Return the error for a container that is gone."""
        text = self.error_text() or "the next command starts another one"
        return SandboxUnavailableError(f"The container has exited unexpectedly: {text}")

    def _write(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise TypeError("The process has no pipe for standard input")
        with self._lock, contextlib.suppress(OSError, ValueError):  # the reader notices the end
            write_all(stdin.fileno(), data)


def _decode(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the value and the data of a reply.

    Raises:
        SandboxUnavailableError: It is malformed.
    """
    try:
        reply, data = file_server.unpack(payload)
        return dict(reply), data
    except (ValueError, TypeError) as error:
        raise SandboxUnavailableError(f"The runner sent a malformed reply: {error}") from error


class _RunnerConnection:
    """The reading side; it does not refer to the client, which is collected when unused."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._channels: dict[int, _Channel] = {}
        self._errors = OutputBuffer(_MAX_EXCERPT)
        self._error_thread = threading.Thread(target=self._read_errors, daemon=True)
        self.is_alive = True

    def start(self) -> None:
        self._error_thread.start()
        threading.Thread(target=self._read_frames, daemon=True, name="wink-container").start()

    def open(self, number: int) -> _Channel:
        channel: _Channel = queue.SimpleQueue()
        self._channels[number] = channel
        if not self.is_alive:
            channel.put(None)
        return channel

    def close_channel(self, number: int) -> None:
        self._channels.pop(number, None)

    def error_text(self) -> str:
        self._error_thread.join(0.5 if not self.is_alive else 0)
        return self._errors.output().text.strip()

    def _read_frames(self) -> None:
        stdout = self._process.stdout
        unread = bytearray()
        try:
            while stdout is not None and (data := os.read(stdout.fileno(), 4 * _CHUNK)):
                unread += data
                for number, kind, payload in runner.take_messages(unread, runner.MAX_FRAME):
                    if (channel := self._channels.get(number)) is not None:
                        channel.put((kind, payload))
        except (OSError, ValueError):
            pass  # closed by us, or malformed
        finally:
            self.is_alive = False
            for channel in list(self._channels.values()):
                channel.put(None)
            if stdout is not None:
                stdout.close()

    def _read_errors(self) -> None:
        stderr = self._process.stderr
        with contextlib.suppress(OSError, ValueError):
            while stderr is not None and (data := os.read(stderr.fileno(), _CHUNK)):
                self._errors.feed(data)
        if stderr is not None:
            stderr.close()


def _disconnect(process: "subprocess.Popen[bytes]", owner: int) -> bool:
    """End the container: the runner exits when its standard input is closed.

    Return whether podman had to be killed, so that the container may still be there.
    """
    if os.getpid() != owner:
        return False  # this process is a fork of the owner
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


class ContainerCommand(RunningCommand):
    """A command in a container, from start until every process is gone."""

    def __init__(
        self,
        client: RunnerClient,
        command: PreparedCommand,
        cwd: str,
        max_output: int,
        on_output: OutputListener | None = None,
    ) -> None:
        """Start `command` in the directory `cwd` of the workspace."""
        super().__init__(command.grace, max_output, on_output)
        self._is_lost = False
        self._has_ended = False
        self._client = client
        self._input = memoryview(command.stdin)
        self._in_transit = 0
        self._unconfirmed = 0
        self._number, self._channel = client.open_channel()
        request = {
            "argv": command.argv,
            "env": dict(command.env),
            "cwd": cwd,
            "grace": command.grace,
            "stdin": bool(command.stdin),
        }
        client.send(self._number, runner.START, json.dumps(request).encode())
        self._send_input()

    @property
    def has_ended(self) -> bool:
        """Whether no process of it is left, or the container has exited."""
        return self._has_ended

    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Handle frames until the command has ended; return False on timeout."""
        while not self.has_ended:
            left = until - clock()
            if left <= 0:
                return False
            with contextlib.suppress(queue.Empty):
                self._handle(self._channel.get(timeout=min(left, _MAX_WAIT)))
        return True

    def check(self) -> None:
        """Make sure that the container has not exited.

        Raises:
            SandboxUnavailableError: It has, so there is no result.
        """
        if self._is_lost:
            raise self._client.lost_error()

    def stop(self) -> None:
        """Ask the runner to stop everything; thread-safe and idempotent."""
        self._client.send(self._number, runner.STOP)

    def finish(self) -> None:
        """Stop what still runs."""
        self.out.sink = self.err.sink = None  # it may have failed
        super().finish()

    def close(self) -> None:
        """Expect no more frames."""
        self._client.close_channel(self._number)

    def _handle(self, frame: _Frame | None) -> None:
        if frame is None:
            self._is_lost = self._has_ended = True
            return
        kind, payload = frame
        if kind == runner.STDOUT:
            self._receive(self.out, payload)
        elif kind == runner.STDERR:
            self._receive(self.err, payload)
        elif kind == runner.REPORT:
            self._update(payload)
        elif kind == runner.ACCEPTED:
            self._in_transit -= int.from_bytes(payload, "big")
            self._send_input()
        elif kind == runner.END:
            self._has_ended = True

    def _receive(self, buffer: OutputBuffer, data: bytes) -> None:
        buffer.feed(data)
        self._unconfirmed += len(data)
        if self._unconfirmed > runner.WINDOW // 4:
            payload = runner.COUNT.pack(self._unconfirmed)
            self._unconfirmed = 0
            self._client.send(self._number, runner.CONFIRM, payload)

    def _update(self, payload: bytes) -> None:
        for line in payload.decode(errors="replace").splitlines():
            word, _, value = line.partition(" ")
            if word in _SUPERVISOR_WORDS and value.removeprefix("-").isdecimal():
                self.report.update(word, int(value))

    def _send_input(self) -> None:
        while self._input and self._in_transit < runner.WINDOW:
            piece = bytes(self._input[:_CHUNK])
            self._input = self._input[len(piece) :]
            self._in_transit += len(piece)
            self._client.send(self._number, runner.INPUT, piece)
            if not self._input:
                self._client.send(self._number, runner.INPUT)
