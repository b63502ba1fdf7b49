"""An MCP server as a process with pipes, and a client that adds next to nothing to its time.

It is for comparisons and for abuse: it sends whatever bytes it is given, and it leaves results
as they came. Use the official SDK for everything else.
"""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROTOCOL = "2025-11-25"
TIMEOUT = 60.0
"""Seconds until a server that does not answer is given up; no server needs them."""


class NoAnswerError(Exception):
    """The server ended, or did not answer in time."""


class ServerProcess:
    """A server that was started, and its streams."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        start: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        """Start `command`; what it writes to standard error is lost.

        Args:
            command: The words of the command.
            environment: Variables beside those of this process.
            directory: The working directory.
            start: What starts it, with the parameters of `subprocess.Popen`.
        """
        self.process = start(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            start_new_session=True,
        )
        self.pending: dict[object, dict[str, Any]] = {}
        self.notifications: list[dict[str, Any]] = []
        self._received = bytearray()
        self._last = 0

    def __enter__(self) -> Self:
        """Use the server in a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server, whatever it takes."""
        try:
            if kind is None and self.process.poll() is None:
                self.close()
        finally:
            self.kill()

    def initialize(self, capabilities: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Shake hands, and return what the server says about itself."""
        client = {"name": "scripts", "version": "1"}
        answer = self.request(
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "capabilities": capabilities or {},
                "clientInfo": client,
            },
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result; a protocol error is a result with `isError`."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        if "error" in answer:
            text = answer["error"]["message"]
            return {"content": [{"type": "text", "text": text}], "isError": True}
        return answer["result"]

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the answer to it."""
        return self.wait_for(self.start(method, params))

    def start(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request and return its id."""
        self._last += 1
        self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params or {}})
        return self._last

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, and receive what comes meanwhile: neither side waits for the other."""
        assert self.process.stdin is not None
        target = self.process.stdin.fileno()
        os.set_blocking(target, False)
        rest = memoryview(data)
        while rest:
            readable, writable = self._wait([target], TIMEOUT)
            if readable:
                self._receive()
            if writable:
                rest = rest[os.write(target, rest) :]

    def wait_for(self, identity: object, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Return the answer with that id; None is the id of an error about no request."""
        while identity not in self.pending:
            self.receive(timeout)
        return self.pending.pop(identity)

    def receive(self, timeout: float = TIMEOUT) -> None:
        """Receive at least one message: into `pending` or `notifications`.

        Raises:
            NoAnswerError: Nothing came, or the server has ended.
        """
        before = len(self.pending) + len(self.notifications)
        end = time.monotonic() + timeout
        while len(self.pending) + len(self.notifications) == before:
            readable, _ = self._wait([], end - time.monotonic())
            if not readable:
                raise NoAnswerError(f"No answer in {timeout:g} s")
            self._receive()

    def memory(self) -> int:
        """Return the most bytes of memory that the process has had so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [each for each in status.splitlines() if each.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def close(self) -> int:
        """Close the server's input, and return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        while not self.process.stdout.closed and os.read(self.process.stdout.fileno(), 1 << 16):
            pass
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Kill the server, if it still runs."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _wait(self, targets: list[int], timeout: float) -> tuple[list[int], list[int]]:
        assert self.process.stdout is not None
        readable, writable, _ = select.select(
            [self.process.stdout.fileno()], targets, [], max(timeout, 0)
        )
        if not readable and not writable:
            raise NoAnswerError(f"The server neither reads nor writes for {timeout:g} s")
        return readable, writable

    def _receive(self) -> None:
        assert self.process.stdout is not None
        piece = os.read(self.process.stdout.fileno(), 1 << 20)
        if not piece:
            raise NoAnswerError("The server closed its output")
        self._received += piece
        if b"\n" in piece:
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message and "method" not in message:
            self.pending[message["id"]] = message
        else:
            self.notifications.append(message)
