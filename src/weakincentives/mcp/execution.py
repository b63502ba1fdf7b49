"""Execution of calls: each in its turn and in a transaction, with its state kept for undo."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
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
from weakincentives.mcp.history import History, Recorded
from weakincentives.mcp.history_tools import CHECKPOINT
from weakincentives.mcp.resources import LogEntry, WorkspaceResources
from weakincentives.mcp.results import error_result, to_result
from weakincentives.mcp.roots import ClientRoots, RootsPolicy
from weakincentives.mcp.steps import Step
from weakincentives.posix import cancellable, check_cancelled
from weakincentives.prompt import Tool, ToolContext, ToolResult
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
        if history is not None:
            tools = [_keep_before_rollback(tool, history) for tool in tools]
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
        recorded = Recorded()
        try:
            with cancellable(running.cancellation):
                if tool is None or tool.read_only or self._history is None:
                    outcome = self._executor(client).execute(call)
                else:
                    outcome, recorded = self._run_recorded(
                        self._history, call, client, tool, running
                    )
                return self._to_result(outcome, recorded)
        except WinkError as error:
            return error_result(f"{call.name} failed and changed nothing: {error}")
        except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the server
            _log.exception("Tool %r crashed", call.name)
            return error_result(
                f"{call.name} crashed ({type(error).__name__}: {error}) and changed nothing"
            )
        finally:
            self._log_call(call, client, running, outcome, recorded.step)

    def _run_recorded(
        self,
        history: History,
        call: ToolCall,
        client: McpClient,
        tool: Tool[Any, Any],
        running: RunningCall,
    ) -> tuple[ToolOutcome, Recorded]:
        """Run a call that may change something, and keep the state before and after it."""
        recording = history.begin(client, tool.name, bypasses_filesystem=tool.bypasses_filesystem)
        self._current = running
        success = False
        try:
            outcome = self._executor(client).execute(call)
            success = outcome.result.success
        finally:
            self._current = None
            recorded = history.finish(recording, success=success)
        return outcome, recorded

    def _to_result(self, outcome: ToolOutcome, recorded: Recorded) -> CallToolResult:
        step = recorded.step
        notes: list[str] = []
        if recorded.problem is not None:
            notes.append(f"[done, but {recorded.problem}]")
        call, changed = None, ()
        if step is not None and step.after is not None:
            call, changed = step.number, step.paths
            if step.is_undo:
                notes.append(f"This is call {call}; to redo: undo with call={call}.")
        return to_result(
            outcome,
            self._filesystem,
            uri=self._resources.uri,
            call=call,
            changed=changed,
            notes=notes,
        )

    def _log_call(
        self,
        call: ToolCall,
        client: McpClient,
        running: RunningCall,
        outcome: ToolOutcome | None,
        step: Step | None,
    ) -> None:
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


def _keep_before_rollback(tool: Tool[Any, Any], history: History) -> Tool[Any, Any]:
    """Return a tool that keeps the state of the files before it fails and is rolled back.

    Only of one that bypasses the filesystem: the rollback of others leaves other files alone.
    """
    handler = tool.handler
    if handler is None or not tool.bypasses_filesystem:
        return tool

    def run(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        is_done = False
        try:
            result = handler(params, context=context)
            check_cancelled(f"Tool call {tool.name!r}")
            is_done = result.success
        finally:
            if not is_done:
                history.keep_before_rollback()
        return result

    return replace(tool, handler=run)


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
