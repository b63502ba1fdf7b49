"""Calls of clients: their order, cancellation, execution and results, each in a transaction.

Calls run in the order in which they arrive, whichever client sent them. One that can change files
runs alone; those that only read run side by side. So no call sees half of another one.
"""

import asyncio
import base64
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar, cast

import anyio
from mcp import types

from weakincentives.adapters import CancellationToken, ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools import ReadFileResult
from weakincentives.errors import UnfinishedRestoreError, WinkError
from weakincentives.filesystem import BackendUnavailableError, Filesystem, HostBacked
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.history import History, RecordedCall
from weakincentives.mcp.history_tools import CHECKPOINT, HistoryResult
from weakincentives.mcp.resources import MAX_MEDIA, mime_type
from weakincentives.mcp.steps import Step
from weakincentives.mcp.tools import MEDIA_TOOL
from weakincentives.posix import TimeLimitError, cancellable, display_path
from weakincentives.prompt import Media, Tool, ToolContext
from weakincentives.serde import to_builtins

MAX_PARALLEL = 4
"""Calls that run side by side."""
MAX_WAITING = 4_096
"""Calls that wait for their turn; further ones are refused."""
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Characters in the arguments of calls that wait; further ones are refused."""
PROGRESS_INTERVAL = 1.0
"""Seconds between two reports of progress."""
_MAX_EXECUTORS = 64  # one for each client
_MAX_LINE = 200  # characters of a command's last line in a report
_log = logging.getLogger(__name__)
T = TypeVar("T")


Finished: TypeAlias = tuple[types.CallToolResult, Sequence[str]]
"""The result of a call of a tool, and the paths that it has changed."""
Report: TypeAlias = Callable[[float, None, str], Awaitable[None]]
"""Reports progress: a number that increases, no total, and a sentence."""


class ServerBusyError(WinkError, RuntimeError):
    """Too many calls wait for their turn."""


class QueuedCall(Future[T]):
    """A call from its arrival to its end: its result, its cancellation, and how far it has got."""

    def __init__(
        self, name: str, function: Callable[[], T], *, exclusive: bool = False, size: int = 0
    ) -> None:
        """Run `function` in a copy of the caller's context.

        Args:
            name: What it is, for the person who waits.
            function: What to run.
            exclusive: Nothing else runs at the same time.
            size: The memory that it takes while it waits.
        """
        super().__init__()
        self.name: str = name
        self.exclusive: bool = exclusive
        self.size: int = size
        self.cancellation: CancellationToken = CancellationToken()
        self._function = function
        self._context = copy_context()
        self._created = time.monotonic()
        self._lines = 0
        self._last_line = ""

    def run(self, finish: Callable[["QueuedCall[Any]"], None]) -> None:
        """Run it in this thread; call `finish` before the result is there."""
        try:
            result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 # who waits gets it
            finish(self)
            self.set_exception(error)
        else:
            finish(self)
            self.set_result(result)

    def on_output(self, data: bytes) -> None:
        """Note what its command prints."""
        self._lines += data.count(b"\n")
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = display_path(lines[-1].strip())[:_MAX_LINE]

    async def wait(self, report: Report | None = None) -> T:
        """Return the result; call `report` every second until it is there.

        If this task is cancelled, a call that waits does not run. One that runs is stopped and
        rolled back, which is awaited: nothing changes files any more when this returns.
        """
        waiting = asyncio.wrap_future(self)
        try:
            while report is not None and not waiting.done():
                await asyncio.wait([waiting], timeout=PROGRESS_INTERVAL)
                if not waiting.done():
                    seconds = time.monotonic() - self._created
                    await report(seconds, None, self._describe(seconds))
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not self.cancel():
                self.cancellation.cancel("the client cancelled it, or has gone")
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([waiting])
            raise

    def _call(self) -> T:
        with cancellable(self.cancellation):
            return self._function()

    def _describe(self, seconds: float) -> str:
        """Return what it is doing, for the person who waits."""
        if not self.running():
            return f"{self.name}: waiting for other calls"
        text = f"{self.name}: running for {seconds:.0f} s"
        if self._lines:
            text += f", {self._lines:,} {'line' if self._lines == 1 else 'lines'} printed"
        return f"{text}: {self._last_line}" if self._last_line else text


class CallQueue:
    """Runs calls in threads, first come, first served; exclusive ones run alone.

    Thread-safe.
    """

    def __init__(self) -> None:
        """Start without a call."""
        self._lock = Lock()
        self._waiting: deque[QueuedCall[Any]] = deque()
        self._waiting_bytes = 0
        self._running: set[QueuedCall[Any]] = set()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="wink-mcp")

    def submit(self, call: QueuedCall[T]) -> QueuedCall[T]:
        """Run a call when its turn comes, and return it; it can be cancelled until then.

        Raises:
            ServerBusyError: Too many calls wait, or the queue is closed.
        """
        size = call.size
        with self._lock:
            if self._is_closed:
                raise ServerBusyError("The server is shutting down")
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                raise ServerBusyError(
                    f"The server is busy: {len(self._waiting):,} calls are waiting; send this one"
                    " again later"
                )
            self._waiting.append(call)
            self._waiting_bytes += size
            self._start_next()
        return call

    def on_output(self, stream: str, data: bytes) -> None:
        """Note what the command of the call prints that runs alone."""
        del stream
        with self._lock:
            for call in self._running:
                if call.exclusive:
                    call.on_output(data)

    def close(self) -> None:
        """Cancel what waits and what runs, and return when nothing runs any more."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
            running = tuple(self._running)
        for call in running:
            call.cancellation.cancel("the server is shutting down")
        for call in waiting:
            call.cancel()
        self._pool.shutdown(wait=True)

    def _start_next(self) -> None:
        """Start what may run now; the lock is held."""
        while self._waiting:
            call = self._waiting[0]
            limit = 1 if call.exclusive else MAX_PARALLEL
            if len(self._running) >= limit or any(each.exclusive for each in self._running):
                return
            self._waiting.popleft()
            self._waiting_bytes -= call.size
            if call.set_running_or_notify_cancel():
                self._running.add(call)
                self._pool.submit(call.run, self._finish)

    def _finish(self, call: QueuedCall[Any]) -> None:
        with self._lock:
            self._running.discard(call)
            self._start_next()


class CallExecution:
    """Runs the calls of all clients on one workspace; thread-safe."""

    def __init__(
        self,
        tools: Sequence[Tool[Any, Any]],
        context: ToolContext,
        queue: CallQueue,
        *,
        create_executor: Callable[..., ToolExecutor],
        history: History | None,
        uri: Callable[[str], str],
    ) -> None:
        """Run calls of `tools` in `context`, with the client as the prompt; `uri` names a file.

        Raises:
            PromptError: Two tools have the same name.
        """
        self._context = context
        self._check_root = _root_check(context.filesystem)
        self._history = history
        self._uri = uri
        create_executor(tools, context=context)  # two tools with one name are the caller's error

        @lru_cache(_MAX_EXECUTORS)
        def executor_of(client: McpClient) -> ToolExecutor:
            return create_executor(tools, context=replace(context, prompt=client))

        self._executor_of = executor_of
        self._by_name: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            self._by_name.update(dict.fromkeys((tool.name, *tool.other_names), tool))
        self._queue = queue
        self._numbers = count(1)
        if history is not None:
            # not exclusive: clients can read while the first state of a large directory is taken
            self.submit_read("start", partial(_start_history, history))

    def has_tool(self, name: str) -> bool:
        """Return whether there is a tool with this name."""
        return name in self._by_name

    def submit(
        self, name: str, arguments: Mapping[str, object], client: McpClient
    ) -> QueuedCall[Finished]:
        """Run a call of a tool when its turn comes.

        Raises:
            ServerBusyError: Too many calls wait, or the workspace is closed.
        """
        request = ToolCall(name, arguments, f"{client}-{next(self._numbers)}")
        tool = self._by_name.get(name)
        exclusive = tool is None or not tool.read_only or tool.name == CHECKPOINT
        run = partial(self._run, request, tool, client)
        return self._queue.submit(QueuedCall(name, run, exclusive=exclusive, size=_size(arguments)))

    def submit_read(self, name: str, read: Callable[[], T]) -> QueuedCall[T]:
        """Run a function that only reads when its turn comes; raises as `submit` does."""

        def read_checked() -> T:
            self._check_root()
            return read()

        return self._queue.submit(QueuedCall(name, read_checked))

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        self._queue.close()
        if self._history is not None:
            self._history.close()

    # --- one call ---

    def _run(self, call: ToolCall, tool: Tool[Any, Any] | None, client: McpClient) -> Finished:
        """Run a call in its turn; whatever happens, it has a result."""
        name = call.name if tool is None else tool.name
        recording = RecordedCall(Step(client=str(client), tool=name))
        record: AbstractContextManager[None] = nullcontext()
        if tool is not None and not tool.read_only and self._history is not None:
            recording.bypasses_filesystem = tool.bypasses_filesystem
            record = self._history.record(recording)
        try:
            self._check_root()
            with record:
                outcome = self._executor_of(client).execute(call)
                recording.success = outcome.result.success
            step = recording.step
            return self._to_result(outcome, recording), () if step is None else step.paths
        except UnfinishedRestoreError as error:
            text = (
                f"{call.name} was cut off: some files are restored, and others are not. {error}."
                " After the next start, `review` shows the outcome."
            )
        except WinkError as error:
            text = f"{call.name} failed and changed nothing: {error}"
        except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the server
            _log.exception("Tool %r crashed", call.name)
            text = f"{call.name} crashed ({type(error).__name__}: {error}) and changed nothing"
        return error_result(text, recording.notes), ()

    def _to_result(self, outcome: ToolOutcome, recording: RecordedCall) -> types.CallToolResult:
        """Return an outcome in the form of the protocol."""
        result, step, notes = outcome.result, recording.step, recording.notes
        value = result.value
        if not result.success:
            return error_result(outcome.text, notes)
        if outcome.call.name == MEDIA_TOOL and isinstance(value, ReadFileResult):
            return self._media_result(value, result.media)
        if step is not None and step.is_undo:
            notes = [*notes, f"This is call {step.number}; to redo: undo with call={step.number}."]
        text = "\n".join([outcome.text, *notes])
        structured: dict[str, Any] = {"content": text}
        if isinstance(value, ReadFileResult) and value.encoding == "utf-8":
            structured = _page(value)
        elif isinstance(value, HistoryResult):
            structured |= cast("dict[str, Any]", to_builtins(value))
        if result.command is not None:
            command = result.command
            structured |= {"exitCode": command.exit_code, "timedOut": command.timed_out}
        if step is not None and step.after is not None:
            structured |= {"call": step.number, "changed": [*map(display_path, step.paths)]}
        images = (_media_block(each, "") for each in result.media)
        return types.CallToolResult(
            content=[types.TextContent(text=text), *images], structured_content=structured
        )

    def _media_result(self, value: ReadFileResult, found: Sequence[Media]) -> types.CallToolResult:
        """Return a binary file as the reference server does: image, audio or blob."""
        if value.size_bytes > MAX_MEDIA and not found:
            return error_result(
                f"{display_path(value.path)} has {value.size_bytes:,} bytes, more than the"
                f" {MAX_MEDIA:,} that fit into one answer"
            )
        files = self._context.filesystem
        assert files is not None  # it was read there
        data = b"" if found else files.read_bytes(value.path).content
        media = found[0] if found else Media(mime_type(value.path), data)
        block = _media_block(media, self._uri(value.path))
        item = block.model_dump(by_alias=True, mode="json", exclude_none=True)
        return types.CallToolResult(content=[block], structured_content={"content": [item]})


def _root_check(filesystem: Filesystem | None) -> Callable[[], None]:
    """Return a check that the directory of a workspace is still at its path.

    File tools hold it open and would go on in the one that was moved away, and commands in the one
    that took its place.
    """
    if not isinstance(filesystem, HostBacked):
        return lambda: None
    root = Path(filesystem.root)
    first = root.stat()

    def check() -> None:
        found = root.stat() if root.exists() else None
        if found is None or not os.path.samestat(found, first):
            what = "is gone" if found is None else "was replaced by another directory"
            raise BackendUnavailableError(
                f"{display_path(str(root))} {what} after this server was started; the user can"
                " restart the server in the client to open the current directory"
            )

    return check


def _start_history(history: History) -> None:
    try:
        history.start()
    except (WinkError, OSError) as error:
        if not isinstance(error.__cause__, TimeLimitError):  # the server is closed already
            _log.warning("Calls cannot be undone: %s", error)


def _size(value: object) -> int:
    """Return about how many characters the text in a JSON value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value)
        return sum(len(key) + _size(each) for key, each in items.items())
    if isinstance(value, list):
        return sum(1 + _size(each) for each in cast("list[object]", value))
    return 8


def error_result(text: str, notes: Sequence[str] = ()) -> types.CallToolResult:
    """Return the result of a call that failed, with sentences for the model."""
    return types.CallToolResult(
        content=[types.TextContent(text="\n".join([text, *notes]))], is_error=True
    )


def without_structure(result: types.CallToolResult) -> types.CallToolResult:
    """Return a result as text, with the number of the call, which its client may undo."""
    structured: Mapping[str, object] = result.structured_content or {}
    number = structured.get("call")
    last = [] if number is None else [types.TextContent(text=f"[call {number}]")]
    return result.model_copy(
        update={"content": [*result.content, *last], "structured_content": None}
    )


def _page(value: ReadFileResult) -> dict[str, Any]:
    """Return a page of a text file for programs: its lines without numbers."""
    page: dict[str, Any] = {
        "content": value.content,
        "firstLine": value.offset + 1,
        "lines": value.shown,
        "totalLines": value.total,
    }
    return page if value.next_offset is None else page | {"nextLine": value.next_offset + 1}


def _media_block(media: Media, uri: str) -> types.ContentBlock:
    """Return bytes as the protocol has them; those of a file have its URI."""
    kind, data = media.media_type, base64.b64encode(media.data).decode()
    if kind.startswith("image/"):
        return types.ImageContent(data=data, mime_type=kind)
    if kind.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=kind)
    contents = types.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return types.EmbeddedResource(resource=contents)
