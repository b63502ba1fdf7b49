"""Transports to an MCP server: a process of our own over its standard streams, or HTTP.

The SDK's transport for processes reads lines of any length, and a server that hangs may outlive
the process that started it. This one has a limit for messages, keeps the last lines that the
server printed, and starts the server with `launcher`.

One odd part of a message spoils only itself. The SDK's parser refuses a message that is nested
200 levels deep, or that has half a character in it, and its types refuse a list of tools for one
odd tool. Here what is too deep is replaced, and the list passes with the tools that it accepts,
and with all of them as plain data.
"""

import json
import logging
import os
import re
import shutil
import signal
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import anyio
import httpx2
from anyio.abc import ByteReceiveStream, ObjectReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import ValidationError
from pydantic_core import from_json

from weakincentives.posix import read_lines, worker_command
from weakincentives.prompt import PromptError
from weakincentives.redaction import header_secrets

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The longest message that is accepted from a server."""
_MAX_LINES, _MAX_LINE = 20, 500  # of what a server printed, the last lines
_EXIT_TIMEOUT = 2.0  # seconds for a server to exit when its input is closed
_KILL_TIMEOUT = 5.0
_POLL_INTERVAL = 0.01
_CONNECT_TIMEOUT = 30.0
_NOT_FOUND, _SESSION_HEADER = 404, "mcp-session-id"
_DATA = b"data:"
_LAUNCHER = "weakincentives.contrib.integrations.mcp.launcher"
Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

for _name in ("mcp", "client"):  # the SDK's loggers: without a handler, they print to the terminal
    logging.getLogger(_name).addHandler(logging.NullHandler())


class TransportError(Exception):
    """The connection cannot be used any more; the message is the reason, as a clause."""


@dataclass(frozen=True, slots=True)
class McpStdioServer:
    """An MCP server that is started as a process and speaks over its standard streams.

    It is not confined: it can do whatever you can. It does not inherit your environment, except
    for `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER`.

    Args:
        command: The program, by its name in `PATH` or its path.
        args: Its arguments.
        env: More environment variables, such as a key that it needs.
        cwd: Its working directory; by default your home directory, because many programs run or
            import what they find in their working directory.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check and copy the arguments."""
        if isinstance(self.args, str):
            raise PromptError(f"McpStdioServer needs a sequence of arguments: {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not appear in messages: the values of `env`."""
        return tuple(self.env.values())


@dataclass(frozen=True, slots=True)
class McpHttpServer:
    """An MCP server at a URL, over streamable HTTP.

    Args:
        url: Its URL, `https://` or `http://`.
        headers: Headers of every request, such as `Authorization`. They are never sent to another
            origin: such redirects are not followed.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        """Check and copy the arguments."""
        if not self.url.startswith(("https://", "http://")):
            raise PromptError(f"McpHttpServer needs an http or https URL: {self.url!r}")
        object.__setattr__(self, "headers", MappingProxyType(dict(self.headers)))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not appear in messages: the values of headers."""
        return tuple(header_secrets(self.headers))


McpServer: TypeAlias = McpStdioServer | McpHttpServer
"""Where an MCP server is, or how to start it."""


class ServerStatus:
    """What is known about a server during a connection: how it ended, and what it printed."""

    def __init__(self) -> None:
        """Start with a server that is running."""
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.reason: str = ""
        """Why the connection cannot be used any more, as a clause; empty while it can be."""
        self.ended: anyio.Event = anyio.Event()
        """Set when it cannot be used any more."""
        self.has_exited: bool = False
        """Whether a process has closed its output, which is how it ends."""
        self.output_ended: anyio.Event = anyio.Event()
        """Set when everything that a process printed has been read."""
        self.forgot_session: bool = False
        """Whether the server rejects requests because it does not know the session any more."""

    def add_line(self, line: bytes) -> None:
        """Keep a line that is not a message; only the last ones stay."""
        text = line[:_MAX_LINE].decode("utf-8", "replace").rstrip()
        if text:
            self._lines.append(text)

    def end(self, reason: str) -> None:
        """Declare the connection unusable; the first reason stays."""
        self.reason = self.reason or reason
        self.ended.set()

    @property
    def output(self) -> str:
        """The last lines that the server printed and that are not messages."""
        return "\n".join(self._lines)


@asynccontextmanager
async def open_transport(server: McpServer, status: ServerStatus) -> AsyncGenerator[Any, None]:
    """Connect to a server; yield a stream of its messages and a stream for ours.

    Raises:
        TransportError: It cannot be started, or broke off.
    """
    is_process = isinstance(server, McpStdioServer)
    async with _open_stdio(server, status) if is_process else _open_http(server, status) as streams:
        yield streams


@asynccontextmanager
async def _open_http(server: McpHttpServer, status: ServerStatus) -> AsyncGenerator[Any, None]:
    async def check(response: httpx2.Response) -> None:
        if response.status_code == _NOT_FOUND and _SESSION_HEADER in response.request.headers:
            status.forgot_session = True
            status.end("it does not know the session any more")
        await _bound_response(response)

    # the time limits of calls are those of the connection, not of the HTTP client
    timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=None)
    async with (
        httpx2.AsyncClient(
            headers={**server.headers, "Accept-Encoding": "identity"},
            timeout=timeout,
            event_hooks={"response": [check]},
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


async def _bound_response(response: httpx2.Response) -> None:
    """Limit the size of a response, and repair its messages."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise TransportError("it compressed a response, although it was asked not to")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        kind = response.headers.get("content-type", "").lower()
        is_events = kind.startswith("text/event-stream")
        response.stream = _BoundedStream(response.stream, is_events=is_events)


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response: one message, or one in each line of data of a stream of events."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, is_events: bool) -> None:
        self._stream = stream
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_events:
            async for line in read_lines(self._stream, MAX_MESSAGE_BYTES):
                _check_length(line)
                is_data = line.startswith(_DATA)
                data = _DATA + repair(line.removeprefix(_DATA)) if is_data else line
                yield data + b"\n"
            return
        body = bytearray()
        async for chunk in self._stream:
            body += chunk
            _check_length(body)
        yield repair(bytes(body))

    async def aclose(self) -> None:
        await self._stream.aclose()


def _check_length(data: bytes | bytearray) -> None:
    if len(data) > MAX_MESSAGE_BYTES:
        raise httpx2.StreamError(_TOO_LONG)


_TOO_LONG = f"it sent a message of more than {MAX_MESSAGE_BYTES // 1024 // 1024} MiB"


@asynccontextmanager
async def _open_stdio(
    server: McpStdioServer, status: ServerStatus
) -> AsyncGenerator[Streams, None]:
    process = await _start(server)
    incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    requests, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    async with incoming, messages, requests, outgoing, anyio.create_task_group() as tasks:
        tasks.start_soon(_receive, process, incoming, status)
        tasks.start_soon(_collect, process, status)
        tasks.start_soon(_send, process, outgoing)
        try:
            yield messages, requests
        finally:
            has_exited = status.has_exited  # by itself, not because it is stopped here
            with anyio.CancelScope(shield=True):
                messages.close()  # from now on what it sends is dropped, so that it cannot block
                await _stop(process)
                if has_exited:
                    await _report_exit(process, status)
                with anyio.move_on_after(_KILL_TIMEOUT):
                    await process.aclose()
            tasks.cancel_scope.cancel()


async def _start(server: McpStdioServer) -> Process:
    environment = {**get_default_environment(), **server.env}
    directory = Path.home() if server.cwd is None else Path(server.cwd)
    if not directory.is_dir():
        raise TransportError(f"its working directory does not exist: {directory}")
    if shutil.which(server.command, path=environment.get("PATH")) is None:
        raise TransportError(
            f"there is no program {server.command!r}; install it, or give its full path"
        )
    return await anyio.open_process(
        worker_command(_LAUNCHER, str(os.getpid()), server.command, *server.args),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=directory,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us, not for the server
    )


async def _receive(
    process: Process,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    status: ServerStatus,
) -> None:
    """Pass messages on until the server ends; keep other lines, which many servers print."""
    assert process.stdout
    lines = _read_lines(process.stdout, MAX_MESSAGE_BYTES)
    async with incoming:
        async for line in lines:
            if len(line) > MAX_MESSAGE_BYTES:
                status.end(_TOO_LONG)
                break
            try:
                message = jsonrpc_message_adapter.validate_json(repair(line), by_name=False)
            except ValueError:
                status.add_line(line)
                continue
            try:
                await incoming.send(SessionMessage(message))
            except anyio.BrokenResourceError:
                break  # nobody waits for messages any more
        else:
            status.has_exited = True
    async for _ in lines:
        pass
    await _report_exit(process, status)


async def _report_exit(process: Process, status: ServerStatus) -> None:
    await _wait_for_exit(process, _EXIT_TIMEOUT)
    with anyio.move_on_after(_EXIT_TIMEOUT):
        await status.output_ended.wait()
    status.end(
        "it ended" + ("" if process.returncode is None else f" with exit code {process.returncode}")
    )


async def _send(process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for each in outgoing:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")
    # a server that closes its input may still answer; `_receive` notices its end


async def _collect(process: Process, status: ServerStatus) -> None:
    assert process.stderr
    async for line in _read_lines(process.stderr, _MAX_LINE):
        status.add_line(line)
    status.output_ended.set()


async def _read_lines(stream: ByteReceiveStream, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream until it ends or breaks off."""
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for line in read_lines(stream, limit):
            yield line


async def _stop(process: Process) -> None:
    """Close the server's input, then stop it and everything that it started."""
    assert process.stdin
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    if not await _wait_for_exit(process, _EXIT_TIMEOUT):
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)  # the launcher kills what is below it
    if not await _wait_for_exit(process, _KILL_TIMEOUT):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _wait_for_exit(process, _KILL_TIMEOUT)


async def _wait_for_exit(process: Process, seconds: float) -> bool:
    """Return whether the process has ended; `wait` would also wait for its streams."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:
            await anyio.sleep(_POLL_INTERVAL)
    return process.returncode is not None


LISTED_TOOLS = "weakincentives/tools"
"""Where in the metadata of a list of tools all of them are, as the server sent them."""
MAX_DEPTH = 100
"""The levels of a message; what is deeper is replaced by a sentence."""
_TOO_DEEP = '"[nested too deeply]"'
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_VERSIONS = ("2025-11-25", "2026-07-28")  # one of each form that the SDK knows


def repair(data: bytes) -> bytes:
    """Return a message that the SDK can parse; one that is not JSON stays as it is."""
    try:
        from_json(data)
    except ValueError:
        try:
            message: object = json.loads(_prune(data.decode("utf-8", "replace")))
        except ValueError:
            return data
        return json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return data


def _prune(text: str) -> str:
    """Replace what is nested too deeply."""
    kept: list[str] = []
    depth = position = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += (text[position : token.start()], _TOO_DEEP)
        elif token[0] in "]}":
            if depth == MAX_DEPTH + 1:
                position = token.end()
            depth -= 1
    return "".join((*kept, text[position:]))


class ToolListStream(ObjectReceiveStream[SessionMessage | Exception]):
    """The messages of a server, with lists of tools that a session accepts."""

    def __init__(self, messages: ObjectReceiveStream[SessionMessage | Exception]) -> None:
        """Read from a transport."""
        self._messages = messages

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        found = await self._messages.receive()
        if isinstance(found, SessionMessage) and isinstance(found.message, JSONRPCResponse):
            tools = found.message.result.get("tools")
            if isinstance(tools, list):
                _separate(found.message.result, cast("list[object]", tools))
        return found

    async def aclose(self) -> None:
        """Close the transport's stream."""
        await self._messages.aclose()


def _separate(result: dict[str, Any], tools: list[object]) -> None:
    """Leave in a list what the SDK accepts, and put all of it beside it."""
    meta: object = result.get("_meta")
    known = cast("dict[str, object]", meta if isinstance(meta, dict) else {})
    result["_meta"] = {**known, LISTED_TOOLS: tools}
    result["tools"] = [each for each in tools if _is_valid(each)]


def _is_valid(tool: object) -> bool:
    try:
        for version in _VERSIONS:
            validate_server_result("tools/list", version, {**_LIST, "tools": [tool]})
    except ValidationError:
        return False
    return True


_LIST: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
