"""An MCP workspace: tools on files for several clients, each call a transaction."""

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, cast

from mcp.server import Server, ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
)

from weakincentives import __version__
from weakincentives.adapters import (
    MAX_RESULT_CHARACTERS,
    Policy,
    ToolCall,
    ToolExecutor,
    ToolOutcome,
)
from weakincentives.contrib.evaluation import Engine
from weakincentives.contrib.tools import (
    ToolSettings,
    WorkspaceParams,
    filesystem_tools,
    repo_map_handlers,
)
from weakincentives.contrib.tools.context import Handler, HandlerContext
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.shell import DEFAULT_SHELL_LIMITS, ShellLimits, shell_handlers
from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem, HostBacked
from weakincentives.mcp.calls import CallQueue, RunningCall, wait_for
from weakincentives.mcp.clients import ClientRegistry, McpClient
from weakincentives.mcp.history import History, Step, has_history
from weakincentives.mcp.history_tools import CHECKPOINT, HistoryTools
from weakincentives.mcp.results import error_result, to_result
from weakincentives.mcp.roots import ClientRoots, RootsPolicy
from weakincentives.mcp.tools import describe_tool
from weakincentives.posix import cancellable
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.sandbox import Sandbox

NAME = "weakincentives"
"""The name of the server."""
_MAX_EXECUTORS = 1_000
_UNDO_ADVICE = (
    "These changes are in the directory itself. To take some or all of them back, use undo."
)
_INSTRUCTIONS = """\
Files of {root} with undo. Each call is a transaction: a call that fails changes nothing. `diff` \
shows what was changed, `undo` takes calls back, `checkpoint` keeps a state to go back to."""
_log = logging.getLogger(__name__)


class McpWorkspace:
    """Tools on the files of a workspace, offered to MCP clients.

    Several clients may use it at the same time, over any transport. Each call runs in a
    transaction, the session records it, and the state before and after it is kept, so that it
    can be undone. Thread-safe.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        *,
        session: Session | None = None,
        dialect: DialectName = "mcp",
        tools: Iterable[Tool[Any, Any]] | None = None,
        sandbox: Sandbox | None = None,
        engine: Engine | None = None,
        extra_handlers: Mapping[type[Any], Handler] | None = None,
        read_only: bool = False,
        original: str | os.PathLike[str] | None = None,
        review_hint: str = _UNDO_ADVICE,
        on_client: Callable[[McpClient], object] | None = None,
        policies: Sequence[Policy] = (),
        settings: ToolSettings = ToolSettings(ascii_paths=False),  # noqa: B008 # it is frozen
        shell_limits: ShellLimits = DEFAULT_SHELL_LIMITS,
        max_result_characters: int = MAX_RESULT_CHARACTERS,
    ) -> None:
        """Offer the tools of a dialect on `filesystem`.

        Args:
            filesystem: The workspace.
            session: The session that records every call; None creates one.
            dialect: The names and parameters of the tools.
            tools: Tools to offer instead of those of the dialect.
            sandbox: Where commands run; without one there are no tools that run commands.
            engine: What evaluates Python code; without one there is no tool for it.
            extra_handlers: Handlers for further requests that the dialect knows.
            read_only: Leave out the tools that can change something.
            original: The directory that the workspace is a copy of. Clients know it by this name
                and may send absolute paths below it.
            review_hint: What a person can do with all changes, for the tool `review`.
            on_client: Called once for each client, with its first request.
            policies: Policies that may deny a call, checked in this order.
            settings: Limits and rules of the tools.
            shell_limits: Limits of the commands.
            max_result_characters: The maximum length of a result; longer text is truncated.

        Raises:
            PromptError: The dialect is unknown, or two tools have the same name.
        """
        self.filesystem: Filesystem = filesystem
        self.session: Session = Session() if session is None else session
        roots = _host_roots(filesystem, original)
        self._settings = replace(settings, host_roots=settings.host_roots or roots)
        self._root = next(iter(self._settings.host_roots), filesystem.root)
        self._roots = ClientRoots(self._settings.host_roots)
        self._current: RunningCall | None = None
        read_only = read_only or filesystem.read_only
        if tools is None:
            handlers = self._handlers(sandbox, engine, shell_limits) | dict(extra_handlers or {})
            tools = filesystem_tools(
                dialect, settings=self._settings, extra_handlers=handlers, read_only=read_only
            )
        self._history: History | None = History(filesystem) if has_history(filesystem) else None
        undo_tools: Sequence[Tool[Any, Any]] = ()
        if self._history is not None:
            undo_tools = HistoryTools(
                self._history,
                filesystem,
                settings=self._settings,
                advice=review_hint,
                is_visible=self._roots.allows,
            ).create(read_only=read_only)
        self.tools: tuple[Tool[Any, Any], ...] = (*tools, *undo_tools)
        self._by_name: dict[str, Tool[Any, Any]] = {}
        for tool in self.tools:
            self._by_name.update(dict.fromkeys((tool.name, *tool.other_names), tool))
        self._descriptions = [describe_tool(tool) for tool in self.tools]
        self._policies = tuple(policies)
        self._max_result_characters = max_result_characters
        self._clients = ClientRegistry(on_client)
        self._executors: OrderedDict[McpClient, ToolExecutor] = OrderedDict()
        self._running: set[RunningCall] = set()
        self._lock = Lock()
        self._queue = CallQueue()
        self._call_ids = count(1)
        self._executor(McpClient("client", 0))  # two tools with one name are the caller's error
        if self._history is not None:
            self._queue.submit(self._start_history, exclusive=True)

    def create_server(self) -> Server[Any]:
        """Return a server that offers this workspace and nothing else."""
        server: Server[Any] = Server(
            NAME,
            version=__version__,
            title="Workspace with undo",
            instructions=_INSTRUCTIONS.format(root=self._root),
        )
        self.mount(server)
        return server

    def mount(self, server: Server[Any]) -> None:
        """Add the workspace to a low-level server; it replaces the server's own tools."""
        server.add_request_handler("tools/list", PaginatedRequestParams, self.list_tools)
        server.add_request_handler("tools/call", CallToolRequestParams, self.call_tool)
        server.add_notification_handler(
            "notifications/roots/list_changed", NotificationParams, self._on_roots_changed
        )

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        with self._lock:
            running = tuple(self._running)
        for call in running:
            call.cancellation.cancel("the server is shutting down")
        self._queue.close()
        if self._history is not None:
            self._history.close()

    # --- handlers of requests ---

    async def list_tools(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None = None
    ) -> ListToolsResult:
        """Return the tools: the handler of `tools/list`."""
        del context, params  # all tools fit into one page
        return ListToolsResult(tools=self._descriptions)

    async def call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        """Run a call: the handler of `tools/call`.

        A call that is cancelled before its turn does not run. One that is cancelled while it
        runs is stopped and rolled back.
        """
        client = self._clients.identify(context)
        arguments = params.arguments or {}
        call = ToolCall(params.name, arguments, f"{client}-{next(self._call_ids)}")
        running = RunningCall(params.name)
        tool = self._by_name.get(params.name)
        try:
            await self._roots.ask(context, client)
            future = self._queue.submit(
                partial(self._run, call, client, running),
                exclusive=tool is None or not tool.read_only or tool.name == CHECKPOINT,
                size=_size(arguments),
            )
        except (WinkError, TimeoutError) as error:
            return error_result(str(error))
        has_token = context.meta is not None and context.meta.get("progress_token") is not None
        report = partial(_report, context) if has_token else None
        with self._lock:
            self._running.add(running)
        try:
            return await wait_for(future, running, report)
        finally:
            with self._lock:
                self._running.discard(running)

    def execute(self, call: ToolCall, client: McpClient) -> CallToolResult:
        """Run a call now, in this thread, as a call of `client`."""
        tool = self._by_name.get(call.name)
        exclusive = tool is None or not tool.read_only or tool.name == CHECKPOINT
        running = RunningCall(call.name)
        return self._queue.submit(
            partial(self._run, call, client, running), exclusive=exclusive
        ).result()

    # --- one call ---

    def _run(self, call: ToolCall, client: McpClient, running: RunningCall) -> CallToolResult:
        """Run a call in its turn; whatever happens, it has a result."""
        running.start()
        tool = self._by_name.get(call.name)
        with cancellable(running.cancellation):
            try:
                if tool is None or tool.read_only or self._history is None:
                    outcome = self._executor(client).execute(call)
                    return to_result(outcome, self.filesystem)
                outcome, step = self._run_recorded(call, client, tool, running)
            except WinkError as error:
                return error_result(f"{call.name} failed and changed nothing: {error}")
            except Exception as error:  # noqa: BLE001 # a bug in one tool does not end the server
                _log.exception("Tool %r crashed", call.name)
                return error_result(
                    f"{call.name} crashed ({type(error).__name__}: {error}) and changed nothing"
                )
        if step is None or step.after is None:
            return to_result(outcome, self.filesystem, note=self._history.problem)
        return to_result(outcome, self.filesystem, call=step.number, changed=step.paths)

    def _run_recorded(
        self, call: ToolCall, client: McpClient, tool: Tool[Any, Any], running: RunningCall
    ) -> tuple[ToolOutcome, Step | None]:
        """Run a call that may change something, and keep the state before and after it."""
        assert self._history is not None
        recording = self._history.begin(bypasses_filesystem=tool.bypasses_filesystem)
        self._current = running
        success = False
        try:
            outcome = self._executor(client).execute(call)
            success = outcome.result.success
        finally:
            self._current = None
            step = self._history.finish(recording, client, tool.name, success=success)
        return outcome, step

    def _start_history(self) -> None:
        assert self._history is not None
        try:
            self._history.start()
        except WinkError as error:
            _log.warning("Calls cannot be undone: %s", error)

    def _executor(self, client: McpClient) -> ToolExecutor:
        with self._lock:
            found = self._executors.get(client)
            if found is None:
                found = self._executors[client] = ToolExecutor(
                    self.tools,
                    context=ToolContext(
                        client, None, None, self.session, filesystem=self.filesystem
                    ),
                    policies=(RootsPolicy(self._roots, client), *self._policies),
                    max_result_characters=self._max_result_characters,
                )
                if len(self._executors) > _MAX_EXECUTORS:
                    self._executors.popitem(last=False)
            return found

    def _handlers(
        self, sandbox: Sandbox | None, engine: Engine | None, limits: ShellLimits
    ) -> dict[type[Any], Handler]:
        handlers: dict[type[Any], Handler] = {
            **repo_map_handlers(),
            WorkspaceParams: self._allowed_directories,
        }
        if sandbox is not None:
            handlers |= shell_handlers(sandbox, limits=limits, on_output=self._on_output)
        if engine is not None:
            handlers |= evaluation_handlers(engine)
        return handlers

    def _on_output(self, stream: str, data: bytes) -> None:
        current = self._current
        if current is not None:
            current.on_output(stream, data)

    def _allowed_directories(
        self, request: WorkspaceParams, context: HandlerContext
    ) -> ToolResult[str]:
        """Return the directories that the client of a call may access, one per line."""
        del request
        root = Path(self._root)
        client = context.tool_context.prompt
        allowed = self._roots.allowed(client) if isinstance(client, McpClient) else ("",)
        lines = ["Allowed directories:", *(str(root / path) for path in allowed)]
        if self.filesystem.read_only:
            lines.append("The workspace is read-only.")
        text = "\n".join(lines)
        return ToolResult(text, text, exclude_value_from_context=True)

    async def _on_roots_changed(
        self, context: ServerRequestContext[Any, Any], params: NotificationParams
    ) -> None:
        del params
        self._roots.forget(self._clients.identify(context))


async def _report(context: ServerRequestContext[Any, Any], progress: float, message: str) -> None:
    await context.session.report_progress(progress, message=message)


def _host_roots(filesystem: Filesystem, original: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Return the directories of the host that stand for the workspace, the best name first."""
    names = [] if original is None else [os.fspath(original)]
    names += [filesystem.root] if isinstance(filesystem, HostBacked) else []
    absolute = [os.path.abspath(name) for name in names]  # noqa: PTH100 # the spelling, links kept
    return tuple(dict.fromkeys([*absolute, *map(os.path.realpath, absolute)]))


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
