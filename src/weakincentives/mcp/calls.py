"""Calls of clients: their order, cancellation and execution, each in a transaction.

Calls run in the order in which they arrive, whichever client sent them. One that can change files
runs alone; those that only read run side by side. So no call sees half of another one.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar, cast

import anyio
from mcp.types import CallToolResult

from weakincentives.adapters import CancellationToken, Policy, ToolCall, ToolExecutor, ToolOutcome
from weakincentives.errors import UnfinishedRestoreError, WinkError
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.history import History, Recording
from weakincentives.mcp.history_tools import CHECKPOINT
from weakincentives.mcp.steps import Step
from weakincentives.mcp.tools import error_result, to_result
from weakincentives.posix import cancellable, display_path
from weakincentives.prompt import Tool, ToolContext

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


class ServerBusyError(WinkError, RuntimeError):
    """Too many calls wait for their turn."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T]):
    function: Callable[[], T]
    call: "RunningCall | None"
    exclusive: bool
    size: int
    future: "Future[T]" = field(default_factory=Future[Any])


class CallQueue:
    """Runs functions in threads, first come, first served; exclusive ones run alone.

    Thread-safe.
    """

    def __init__(self, *, max_parallel: int = MAX_PARALLEL) -> None:
        """Run at most `max_parallel` functions at the same time."""
        self._max_parallel = max_parallel
        self._lock = Lock()
        self._waiting: deque[_Waiting[Any]] = deque()
        self._waiting_bytes = 0
        self._running: set[_Waiting[Any]] = set()
        self._is_closed = False
        self._pool = ThreadPoolExecutor(max_parallel, thread_name_prefix="wink-mcp")

    def submit(
        self,
        function: Callable[[], T],
        call: "RunningCall | None" = None,
        *,
        exclusive: bool = False,
        size: int = 0,
    ) -> "Future[T]":
        """Run `function` when its turn comes; its future can be cancelled until then.

        Args:
            function: What to run, in a copy of the caller's context.
            call: What is cancelled if the queue is closed while it runs.
            exclusive: Nothing else runs at the same time.
            size: The memory that it takes while it waits.

        Raises:
            ServerBusyError: Too many functions wait, or the queue is closed.
        """
        context = copy_context()
        entry = _Waiting[T](lambda: context.run(function), call, exclusive, size)
        with self._lock:
            if self._is_closed:
                raise ServerBusyError("The server is shutting down")
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                raise ServerBusyError(
                    f"The server is busy: {len(self._waiting):,} calls are waiting; send this one"
                    " again later"
                )
            self._waiting.append(entry)
            self._waiting_bytes += size
            self._start_next()
        return entry.future

    def close(self) -> None:
        """Cancel what waits and what runs, and return when nothing runs any more."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
            running = tuple(self._running)
        for entry in running:
            if entry.call is not None:
                entry.call.cancellation.cancel("the server is shutting down")
        for entry in waiting:
            entry.future.cancel()
        self._pool.shutdown(wait=True)

    def _start_next(self) -> None:
        """Start what may run now; the lock is held."""
        while self._waiting:
            entry = self._waiting[0]
            limit = 1 if entry.exclusive else self._max_parallel
            if len(self._running) >= limit or any(each.exclusive for each in self._running):
                return
            self._waiting.popleft()
            self._waiting_bytes -= entry.size
            if not entry.future.set_running_or_notify_cancel():
                continue
            self._running.add(entry)
            self._pool.submit(self._run, entry)

    def _run(self, entry: _Waiting[Any]) -> None:
        try:
            result = entry.function()
        except BaseException as error:  # noqa: BLE001 # the caller gets it from the future
            self._finish(entry)
            entry.future.set_exception(error)
        else:
            self._finish(entry)
            entry.future.set_result(result)

    def _finish(self, entry: _Waiting[Any]) -> None:
        with self._lock:
            self._running.discard(entry)
            self._start_next()


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call between its arrival and its end: its cancellation, and how far it has got."""

    name: str
    cancellation: CancellationToken = field(default_factory=CancellationToken)
    has_started: bool = False
    """Whether its turn has come."""
    _created: float = field(default_factory=time.monotonic)
    _lines: int = 0
    _last_line: str = ""

    def on_output(self, stream: str, data: bytes) -> None:
        """Note what its command prints."""
        del stream
        self._lines += data.count(b"\n")
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = display_path(lines[-1].strip())[:_MAX_LINE]

    @property
    def seconds(self) -> float:
        """The seconds since it arrived."""
        return time.monotonic() - self._created

    def describe(self) -> str:
        """Return what it is doing, for the person who waits."""
        if not self.has_started:
            return f"{self.name}: waiting for other calls"
        text = f"{self.name}: running for {self.seconds:.0f} s"
        if self._lines:
            text += f", {self._lines:,} {'line' if self._lines == 1 else 'lines'} printed"
        return f"{text}: {self._last_line}" if self._last_line else text


Report: TypeAlias = Callable[[float, str], Awaitable[None]]
"""Reports progress: a number that increases, and a sentence."""


async def wait_for(future: "Future[T]", call: RunningCall, report: Report | None = None) -> T:
    """Return the result of a call.

    If this task is cancelled, a call that waits does not run. One that runs is stopped and rolled
    back, which is awaited: nothing changes files any more when this returns.

    Args:
        future: The future of the call.
        call: The call.
        report: Called every second while the call runs.
    """
    waiting = asyncio.wrap_future(future)
    try:
        while report is not None and not waiting.done():
            await asyncio.wait([waiting], timeout=PROGRESS_INTERVAL)
            if not waiting.done():
                await report(call.seconds, call.describe())
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not future.cancel():
            call.cancellation.cancel("the client cancelled it, or has gone")
            with anyio.CancelScope(shield=True):
                await asyncio.wait([waiting])
        raise


class CallExecution:
    """Runs the calls of all clients on one workspace.

    Calls run in the order in which they arrive. One that can change files runs alone; those that
    only read run side by side. Thread-safe.
    """

    def __init__(
        self,
        tools: Sequence[Tool[Any, Any]],
        context: ToolContext,
        *,
        history: History | None,
        policies: Sequence[Policy],
        uri: Callable[[str], str],
        max_result_characters: int,
    ) -> None:
        """Run calls of `tools` in `context`, with the client as the prompt; `uri` names a file.

        Raises:
            PromptError: Two tools have the same name.
        """
        self._context = context
        self._history = history
        self._uri = uri
        create = partial(
            ToolExecutor, tools, policies=policies, max_result_characters=max_result_characters
        )
        create(context=context)  # two tools with one name are the caller's error

        @lru_cache(_MAX_EXECUTORS)
        def executor_of(client: McpClient) -> ToolExecutor:
            return create(context=replace(context, prompt=client))

        self._executor_of = executor_of
        self._by_name: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            self._by_name.update(dict.fromkeys((tool.name, *tool.other_names), tool))
        self._current: RunningCall | None = None
        self._queue = CallQueue()
        self._numbers = count(1)
        if history is not None:
            # not exclusive: clients can read while the first state of a large directory is taken
            self._queue.submit(partial(_start_history, history))

    def has_tool(self, name: str) -> bool:
        """Return whether there is a tool with this name."""
        return name in self._by_name

    def submit(
        self, name: str, arguments: Mapping[str, object], client: McpClient, running: RunningCall
    ) -> "Future[CallToolResult]":
        """Run a call when its turn comes.

        Raises:
            ServerBusyError: Too many calls wait, or the workspace is closed.
        """
        call = ToolCall(name, arguments, f"{client}-{next(self._numbers)}")
        tool = self._by_name.get(name)
        return self._queue.submit(
            partial(self._run, call, client, running),
            running,
            exclusive=tool is None or not tool.read_only or tool.name == CHECKPOINT,
            size=_size(arguments),
        )

    def submit_read(self, read: Callable[[], T], running: RunningCall) -> "Future[T]":
        """Run a function that only reads when its turn comes; raises as `submit` does."""

        def run() -> T:
            with cancellable(running.cancellation):
                return read()

        return self._queue.submit(run, running)

    def on_output(self, stream: str, data: bytes) -> None:
        """Note what the command of the running call prints."""
        current = self._current
        if current is not None:
            current.on_output(stream, data)

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        self._queue.close()
        if self._history is not None:
            self._history.close()

    # --- one call ---

    def _run(self, call: ToolCall, client: McpClient, running: RunningCall) -> CallToolResult:
        """Run a call in its turn; whatever happens, it has a result."""
        running.has_started = True
        recording = Recording(Step(client=client, tool=call.name))
        try:
            with cancellable(running.cancellation):
                outcome = self._execute(call, client, running, recording)
            return to_result(outcome, recording, self._context.filesystem, uri=self._uri)
        except UnfinishedRestoreError as error:
            text = (
                f"{call.name} was cut off: some files are restored, and others are not. {error}."
                " `review` after the next start says what became of it."
            )
        except WinkError as error:
            text = f"{call.name} failed and changed nothing: {error}"
        except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the server
            _log.exception("Tool %r crashed", call.name)
            text = f"{call.name} crashed ({type(error).__name__}: {error}) and changed nothing"
        return error_result(text, recording.notes)

    def _execute(
        self, call: ToolCall, client: McpClient, running: RunningCall, recording: Recording
    ) -> ToolOutcome:
        """Run a call; add it to the history if it may change something."""
        execute = self._executor_of(client).execute
        tool = self._by_name.get(call.name)
        if tool is None or tool.read_only or self._history is None:
            return execute(call)
        recording.bypasses_filesystem = tool.bypasses_filesystem
        recording.draft = Step(client=client, tool=tool.name)
        self._current = running
        success = False
        self._history.begin(recording)
        try:
            outcome = execute(call)
            success = outcome.result.success
        finally:
            self._current = None
            self._history.finish(recording, success=success)
        return outcome


def _start_history(history: History) -> None:
    try:
        history.start()
    except (WinkError, OSError) as error:
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
