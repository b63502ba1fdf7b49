"""Serve a workspace over standard input and output, to the client that started the process.

Each line is one JSON-RPC message. Lines have a maximum length, and a line that is no message is
answered with an error; the next line is served as if nothing had happened. While it serves,
whatever else is printed goes to standard error, so that only messages reach the client.
"""

import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import cast

import anyio
from anyio.abc import TaskStatus
from mcp import types
from mcp.shared.message import SessionMessage
from pydantic_core import PydanticSerializationError

from weakincentives.mcp.workspace import McpWorkspace
from weakincentives.posix import read_lines

MAX_LINE = 32 * 1024 * 1024
"""Bytes in one message; a longer line is skipped and answered with an error."""
_CHUNK = 64 * 1024
_PIPE_CHUNK = 4 * 1024  # what a pipe that is writable takes without blocking
_MAX_DIAGNOSED = 1024 * 1024  # bytes of a line that is no message, to look for its id
_FINISH_SECONDS = 60  # for the calls of a client that has closed its end, but still reads
_CLOSE_SECONDS = 5  # for the last answers
_POLL_INTERVAL = 0.1
_MAX_UNANSWERED = 1_024  # requests; no further ones are read before some are answered
_ENDLESS = "subscriptions/listen"  # a request that is answered when the connection ends
_CANCELLED = "notifications/cancelled"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_stdio(workspace: McpWorkspace) -> None:
    """Serve one client until it closes standard input or goes away; then close the workspace.

    Calls that run when standard input ends are finished, as long as the client reads the answers.
    SIGINT, SIGTERM and SIGHUP stop them, and so does a client that goes away; they are rolled
    back.
    """
    with _standard_streams() as (source, target):
        try:
            anyio.run(_serve, workspace, source, target)
        finally:
            workspace.close()


async def _serve(workspace: McpWorkspace, source: int, target: int) -> None:
    server = workspace.create_server()
    transport = _Transport(source, target)
    async with anyio.create_task_group() as group:
        await group.start(transport.stop_on_signals)
        group.start_soon(transport.read)
        group.start_soon(transport.write)
        options = server.create_initialization_options()
        await server.run(transport.requests, transport.answers, options)
        await transport.close()
        group.cancel_scope.cancel()


class _Transport:
    """Reads and writes the messages of one connection."""

    def __init__(self, source: int, target: int) -> None:
        """Read from one descriptor, and write to another."""
        self._source = source
        self._target = target
        self._incoming, self.requests = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](0)
        self.answers, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._diagnoses = self.answers.clone()  # the server closes its own
        self._unanswered: set[types.RequestId] = set()
        self._is_broken = False
        self._reading = anyio.CancelScope()
        self._writing = anyio.CancelScope()
        self._written = anyio.Event()

    def stop(self) -> None:
        """End the connection as if the client had gone away."""
        self._is_broken = True
        self._reading.cancel()
        self._writing.cancel()

    async def stop_on_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Stop at Ctrl-C, SIGTERM and SIGHUP; only the main thread can."""
        if current_thread() is not main_thread():
            task_status.started()
            return
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for _ in signals:
                self.stop()

    async def close(self) -> None:
        """Write what is left, if somebody reads it."""
        self._reading.cancel()
        self._diagnoses.close()
        with anyio.move_on_after(_CLOSE_SECONDS):
            await self._written.wait()
        self._writing.cancel()

    async def read(self) -> None:
        """Pass on messages until the client closes its end, then let calls finish."""
        async with self._incoming:
            with self._reading:
                async for line in read_lines(self._chunks(), MAX_LINE):
                    await self._receive(line)
                with anyio.move_on_after(_FINISH_SECONDS):
                    while self._unanswered and not self._is_broken and not _is_gone(self._target):
                        await anyio.sleep(_POLL_INTERVAL)

    async def write(self) -> None:
        """Write messages until the server has none left, or nobody reads them."""
        try:
            with self._writing:
                async with self._outgoing:
                    async for each in self._outgoing:
                        message = each.message
                        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                            self._unanswered.discard(message.id or "")
                        await self._send(_encode(message))
        except OSError:  # nobody reads any more
            self.stop()
        finally:
            self._written.set()

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        with suppress(OSError):  # a terminal or socket that was closed
            while True:
                with suppress(PermissionError):  # a file is always readable
                    await anyio.wait_readable(self._source)
                chunk = os.read(self._source, _CHUNK)
                if not chunk:
                    return
                yield chunk

    async def _receive(self, line: bytes) -> None:
        """Pass on a message, once not too many are without an answer; answer what is none."""
        message = _decode(line)
        if message is None:
            answer = _diagnose(line)
            if answer is not None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._diagnoses.send(SessionMessage(answer))
            return
        if isinstance(message, types.JSONRPCRequest) and message.method != _ENDLESS:
            while len(self._unanswered) >= _MAX_UNANSWERED:
                await anyio.sleep(_POLL_INTERVAL)
            self._unanswered.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
            self._unanswered.discard((message.params or {}).get("requestId", ""))
        await self._incoming.send(SessionMessage(message))

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with suppress(PermissionError):  # a file is always writable
                await anyio.wait_writable(self._target)
            view = view[os.write(self._target, view[:_PIPE_CHUNK]) :]


def _decode(line: bytes) -> types.JSONRPCMessage | None:
    """Return the message that a line is; None if it is none."""
    if len(line) > MAX_LINE:
        return None
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None
    # one with an id that is not valid is a request
    is_request = isinstance(message, types.JSONRPCNotification) and b'"id"' in line
    return None if is_request and "id" in (_parse(line) or {}) else message


def _diagnose(line: bytes) -> types.JSONRPCError | None:
    """Return the answer to a line that is no message, with its id if it has one."""
    if len(line) > MAX_LINE:
        return _error(
            None, types.INVALID_REQUEST, f"Message is longer than {MAX_LINE // 2**20} MiB"
        )
    if not line.strip():
        return None
    fields = _parse(line)
    if fields is None:
        return _error(None, types.PARSE_ERROR, "Message is not JSON in UTF-8")
    if "method" not in fields and ("result" in fields or "error" in fields):
        return None  # an answer to something that was never asked
    given = fields.get("id")
    # one with control characters or half a character is not repeated
    is_id = (isinstance(given, str) and given.isprintable()) or type(given) is int
    request_id = cast("types.RequestId", given) if is_id else None
    return _error(request_id, types.INVALID_REQUEST, "Message is not a JSON-RPC 2.0 request")


def _parse(line: bytes) -> Mapping[str, object] | None:
    """Return the fields of a JSON object; nothing of other JSON, and None if it is not JSON."""
    if len(line) > _MAX_DIAGNOSED:
        return None
    try:
        found: object = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _error(request_id: types.RequestId | None, code: int, text: str) -> types.JSONRPCError:
    error = types.ErrorData(code=code, message=text)
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _encode(message: types.JSONRPCMessage) -> bytes:
    """Return a message as one line."""
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        request_id = getattr(message, "id", None)
        error = _error(request_id, types.INTERNAL_ERROR, "The answer is not valid Unicode")
        text = error.model_dump_json()
    return text.encode() + b"\n"


def _is_gone(target: int) -> bool:
    """Return whether nobody reads from the other end of a pipe or socket."""
    poll = select.poll()
    poll.register(target, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextmanager
def _standard_streams() -> Generator[tuple[int, int], None, None]:
    """Yield private copies of standard input and output.

    Meanwhile programs read nothing from standard input, and what they print goes to standard
    error.
    """
    sys.stdout.flush()
    source, target = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3) for each in (0, 1))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield source, target
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        for each in (nothing, source, target):
            os.close(each)
