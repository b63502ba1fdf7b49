"""Execution of calls: each in its turn and in a transaction, with its state kept for undo."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, TypeVar, cast

from mcp.types import CallToolResult

from weakincentives.adapters import Policy, ToolCall, ToolExecutor, ToolOutcome
from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem
from weakincentives.mcp.calls import CallQueue, RunningCall
from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.history import History, Recording
from weakincentives.mcp.history_tools import CHECKPOINT
from weakincentives.mcp.resources import LogEntry, WorkspaceResources
from weakincentives.mcp.results import error_result, to_result
from weakincentives.mcp.roots import ClientRoots, RootsPolicy
from weakincentives.posix import cancellable
from weakincentives.prompt import Tool, ToolContext
from weakincentives.runtime.session import Session

_MAX_EXECUTORS = 1_000
T = TypeVar("T")
_log = logging.getLogger(__name__)


class CallExecution:
    """Runs the calls of all clients on one workspace.

    Calls run in the order in which they arrive. One that can change files runs alone; those that
    only read run side by side. Thread-safe.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        tools: Sequence[Tool[Any, Any]],
        *,
        session: Session,
        history: History | None,
        resources: WorkspaceResources,
        roots: ClientRoots,
        policies: Sequence[Policy],
        max_result_characters: int,
    ) -> None:
        """Run calls of `tools` on `filesystem`.

        Raises:
            PromptError: Two tools have the same name.
        """
        self._filesystem = filesystem
        self._tools = tuple(tools)
        self._session = session
        self._history = history
        self._resources = resources
        self._roots = roots
        self._policies = tuple(policies)
        self._max_result_characters = max_result_characters
        self._by_name: dict[str, Tool[Any, Any]] = {}
        for tool in tools:
            self._by_name.update(dict.fromkeys((tool.name, *tool.other_names), tool))
        self._executors: OrderedDict[McpClient, ToolExecutor] = OrderedDict()
        self._running: set[RunningCall] = set()
        self._current: RunningCall | None = None
        self._lock = Lock()
        self._queue = CallQueue()
        self._numbers = count(1)
        self._executor(McpClient("client", 0))  # two tools with one name are the caller's error
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
        future = self._queue.submit(
            partial(self._run, call, client, running),
            exclusive=tool is None or not tool.read_only or tool.name == CHECKPOINT,
            size=_size(arguments),
        )
        with self._lock:
            self._running.add(running)
        future.add_done_callback(lambda _: self._forget(running))
        return future

    def submit_read(self, read: Callable[[], T], running: RunningCall) -> "Future[T]":
        """Run a function that only reads when its turn comes; raises as `submit` does."""

        def run() -> T:
            with cancellable(running.cancellation):
                return read()

        return self._queue.submit(run)

    def on_output(self, stream: str, data: bytes) -> None:
        """Note what the command of the running call prints."""
        current = self._current
        if current is not None:
            current.on_output(stream, data)

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        with self._lock:
            running = tuple(self._running)
        for call in running:
            call.cancellation.cancel("the server is shutting down")
        self._queue.close()
        if self._history is not None:
            self._history.close()

    # --- one call ---

    def _run(self, call: ToolCall, client: McpClient, running: RunningCall) -> CallToolResult:
        """Run a call in its turn; whatever happens, it has a result."""
        running.start()
        tool = self._by_name.get(call.name)
        outcome: ToolOutcome | None = None
        recording: Recording | None = None
        if tool is not None and not tool.read_only and self._history is not None:
            recording = self._history.begin(
                client, tool.name, bypasses_filesystem=tool.bypasses_filesystem
            )
        notes = [] if recording is None else recording.notes
        try:
            with cancellable(running.cancellation):
                outcome = self._execute(call, client, running, recording)
            return self._to_result(outcome, recording)
        except WinkError as error:
            return error_result(f"{call.name} failed and changed nothing: {error}", notes)
        except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the server
            _log.exception("Tool %r crashed", call.name)
            return error_result(
                f"{call.name} crashed ({type(error).__name__}: {error}) and changed nothing", notes
            )
        finally:
            self._log_call(call, client, running, outcome, recording)

    def _execute(
        self,
        call: ToolCall,
        client: McpClient,
        running: RunningCall,
        recording: Recording | None,
    ) -> ToolOutcome:
        """Run a call; add it to the history if it may change something."""
        if recording is None or self._history is None:
            return self._executor(client).execute(call)
        self._current = running
        success = False
        try:
            outcome = self._executor(client).execute(call)
            success = outcome.result.success
        finally:
            self._current = None
            self._history.finish(recording, success=success)
        return outcome

    def _to_result(self, outcome: ToolOutcome, recording: Recording | None) -> CallToolResult:
        step = None if recording is None else recording.step
        notes = [] if recording is None else recording.notes
        if step is None or step.after is None:
            return to_result(outcome, self._filesystem, uri=self._resources.uri, notes=notes)
        if step.is_undo:
            redo = f"This is call {step.number}; to redo: undo with call={step.number}."
            notes = [*notes, redo]
        return to_result(
            outcome,
            self._filesystem,
            uri=self._resources.uri,
            call=step.number,
            changed=step.paths,
            notes=notes,
        )

    def _log_call(
        self,
        call: ToolCall,
        client: McpClient,
        running: RunningCall,
        outcome: ToolOutcome | None,
        recording: Recording | None,
    ) -> None:
        step = None if recording is None else recording.step
        change = step if step is not None and step.after is not None else None
        self._resources.add(
            LogEntry(
                client=client,
                tool=call.name if call.name in self._by_name else "unknown tool",
                success=outcome is not None and outcome.result.success,
                milliseconds=running.seconds * 1000,
                call=None if change is None else change.number,
                paths=() if change is None else change.paths,
            )
        )

    def _executor(self, client: McpClient) -> ToolExecutor:
        with self._lock:
            found = self._executors.get(client)
            if found is None:
                found = self._executors[client] = ToolExecutor(
                    self._tools,
                    context=ToolContext(
                        client, None, None, self._session, filesystem=self._filesystem
                    ),
                    policies=(RootsPolicy(self._roots, client), *self._policies),
                    max_result_characters=self._max_result_characters,
                )
                if len(self._executors) > _MAX_EXECUTORS:
                    self._executors.popitem(last=False)
            return found

    def _forget(self, running: RunningCall) -> None:
        with self._lock:
            self._running.discard(running)


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
