"""Serve a workspace over standard input and output, to the client that started the process.

Each line is one JSON-RPC message. Lines have a maximum length, and a line that is no message is
answered with an error; the next line is served as if nothing had happened. While it serves,
whatever else is printed goes to standard error, so that only messages reach the client.
"""

import asyncio
import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic_core import PydanticSerializationError

from weakincentives.mcp.workspace import McpWorkspace

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
    incoming, requests = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    answers, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    transport = _Transport(source, target, incoming, answers.clone())
    with _stop_on_signals(transport.stop):
        async with anyio.create_task_group() as group:
            group.start_soon(transport.read)
            group.start_soon(transport.write, outgoing)
            await server.run(requests, answers, server.create_initialization_options())
            await transport.close()


class _Transport:
    """Reads and writes the messages of one connection."""

    def __init__(
        self,
        source: int,
        target: int,
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
        answers: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        """Read from one descriptor, and write to another."""
        self._source = source
        self._target = target
        self._incoming = incoming
        self._answers = answers
        self._unanswered: set[RequestId] = set()
        self._is_broken = False
        self._reading = anyio.CancelScope()
        self._writing = anyio.CancelScope()
        self._written = anyio.Event()

    def stop(self) -> None:
        """End the connection as if the client had gone away."""
        self._is_broken = True
        self._reading.cancel()
        self._writing.cancel()

    async def close(self) -> None:
        """Write what is left, if somebody reads it."""
        self._reading.cancel()
        self._answers.close()
        with anyio.move_on_after(_CLOSE_SECONDS):
            await self._written.wait()
        self._writing.cancel()

    async def read(self) -> None:
        """Pass on messages until the client closes its end, then let calls finish."""
        async with self._incoming:
            with self._reading:
                async for line in self._lines():
                    await self._receive(line)
                await self._finish()

    async def write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write messages until the server has none left, or nobody reads them."""
        try:
            with self._writing:
                async with outgoing:
                    async for each in outgoing:
                        self._note_answer(each.message)
                        await self._send(_encode(each.message))
        except OSError:  # nobody reads any more
            self.stop()
        finally:
            self._written.set()

    # --- reading ---

    async def _lines(self) -> AsyncIterator[bytes | None]:
        """Yield lines without their end; None for one that is too long."""
        line = bytearray()
        is_too_long = False
        while chunk := await self._read_chunk():
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield None if is_too_long or len(line) + len(end) > MAX_LINE else bytes(line + end)
                line.clear()
                is_too_long = False
            line += rest
            if len(line) > MAX_LINE:
                line, is_too_long = bytearray(), True
        if line or is_too_long:
            yield None if is_too_long else bytes(line)

    async def _read_chunk(self) -> bytes:
        with suppress(PermissionError):  # a file is always readable
            await anyio.wait_readable(self._source)
        try:
            return os.read(self._source, _CHUNK)
        except OSError:  # a terminal or socket that was closed
            return b""

    async def _receive(self, line: bytes | None) -> None:
        if line is None:
            await self._refuse(
                None, INVALID_REQUEST, f"Message is longer than {MAX_LINE // 2**20} MiB"
            )
            return
        if not line.strip():
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self._diagnose(line)
            return
        if isinstance(message, JSONRPCRequest):
            await self._note_request(message)
        elif isinstance(message, JSONRPCNotification):
            if _has_id(line):
                await self._diagnose(line)
                return
            self._note_cancellation(message)
        await self._incoming.send(SessionMessage(message))

    async def _diagnose(self, line: bytes) -> None:
        """Answer a line that is no message, with its id if it has one."""
        found = _parse(line)
        if found is _NOT_JSON:
            text = "Message is not JSON in UTF-8"
            await self._refuse(None, PARSE_ERROR, text)
            return
        request_id: RequestId | None = None
        if isinstance(found, dict):
            fields = cast("dict[str, object]", found)
            if "method" not in fields and ("result" in fields or "error" in fields):
                return  # an answer to something that was never asked
            given = fields.get("id")
            if isinstance(given, str) or type(given) is int:
                request_id = given
        await self._refuse(request_id, INVALID_REQUEST, "Message is not a JSON-RPC 2.0 request")

    async def _refuse(self, request_id: RequestId | None, code: int, text: str) -> None:
        error = ErrorData(code=code, message=text)
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._answers.send(
                SessionMessage(JSONRPCError(jsonrpc="2.0", id=_printable(request_id), error=error))
            )

    async def _note_request(self, message: JSONRPCRequest) -> None:
        """Count a request, once there are not too many without an answer."""
        while len(self._unanswered) >= _MAX_UNANSWERED:
            await anyio.sleep(_POLL_INTERVAL)
        if message.method != _ENDLESS:
            self._unanswered.add(message.id)

    def _note_answer(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._unanswered.discard(message.id)

    def _note_cancellation(self, message: JSONRPCNotification) -> None:
        if message.method == "notifications/cancelled" and message.params is not None:
            self._unanswered.discard(message.params.get("requestId", ""))

    async def _finish(self) -> None:
        """Wait for the answers of calls that still run, if somebody reads them."""
        with anyio.move_on_after(_FINISH_SECONDS):
            while self._unanswered and not self._is_broken and not _is_gone(self._target):
                await anyio.sleep(_POLL_INTERVAL)

    # --- writing ---

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with suppress(PermissionError):  # a file is always writable
                await anyio.wait_writable(self._target)
            view = view[os.write(self._target, view[:_PIPE_CHUNK]) :]


_NOT_JSON = object()


def _parse(line: bytes) -> object:
    """Return the value of a line that is no message; `_NOT_JSON` if it is not JSON."""
    if len(line) > _MAX_DIAGNOSED:
        return _NOT_JSON
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return _NOT_JSON


def _has_id(line: bytes) -> bool:
    """Return whether a message without a valid id has one that is not valid."""
    found = _parse(line) if b'"id"' in line else None
    return isinstance(found, dict) and "id" in found


def _printable(request_id: RequestId | None) -> RequestId | None:
    """Return an id that can be encoded; None if it has unpaired surrogates."""
    if isinstance(request_id, str):
        try:
            request_id.encode()
        except UnicodeEncodeError:
            return None
    return request_id


def _encode(message: JSONRPCMessage) -> bytes:
    """Return a message as one line."""
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except (PydanticSerializationError, UnicodeEncodeError):
        request_id = getattr(message, "id", None)
        error = ErrorData(code=INTERNAL_ERROR, message="The answer is not valid Unicode")
        text = JSONRPCError(jsonrpc="2.0", id=request_id, error=error).model_dump_json()
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


@contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Call `stop` at Ctrl-C, SIGTERM and SIGHUP; only the main thread can."""
    numbers: list[signal.Signals] = []
    loop = asyncio.get_running_loop()
    if current_thread() is main_thread():
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
