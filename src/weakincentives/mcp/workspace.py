"""An MCP workspace: tools on files for several clients, each call a transaction."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, cast

import anyio
from mcp.server import Server, ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from weakincentives import __version__
from weakincentives.adapters import MAX_RESULT_CHARACTERS, Policy, ToolCall, ToolExecutor
from weakincentives.contrib.evaluation import Engine
from weakincentives.contrib.tools import ToolSettings, filesystem_tools, repo_map_handlers
from weakincentives.contrib.tools.context import DEFAULT_SETTINGS, Handler
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.shell import DEFAULT_SHELL_LIMITS, ShellLimits, shell_handlers
from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem
from weakincentives.mcp.calls import CallQueue
from weakincentives.mcp.clients import ClientRegistry, McpClient
from weakincentives.mcp.results import error_result, to_result
from weakincentives.mcp.tools import describe_tool
from weakincentives.prompt import Tool, ToolContext
from weakincentives.runtime.session import Session
from weakincentives.sandbox import Sandbox

NAME = "weakincentives"
"""The name of the server."""
_INSTRUCTIONS = """\
Files of one directory. Each call is a transaction: a call that fails changes nothing."""


class McpWorkspace:
    """Tools on the files of a workspace, offered to MCP clients.

    Several clients may use it at the same time, over any transport. Each call runs in a
    transaction, and the session records it. Thread-safe.
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
        policies: Sequence[Policy] = (),
        settings: ToolSettings = DEFAULT_SETTINGS,
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
            policies: Policies that may deny a call, checked in this order.
            settings: Limits and rules of the tools.
            shell_limits: Limits of the commands.
            max_result_characters: The maximum length of a result; longer text is truncated.

        Raises:
            PromptError: The dialect is unknown, or two tools have the same name.
        """
        self.filesystem: Filesystem = filesystem
        self.session: Session = Session() if session is None else session
        if tools is None:
            handlers: dict[type[Any], Handler] = {**repo_map_handlers(), **(extra_handlers or {})}
            if sandbox is not None:
                handlers |= shell_handlers(sandbox, limits=shell_limits)
            if engine is not None:
                handlers |= evaluation_handlers(engine)
            tools = filesystem_tools(
                dialect, settings=settings, extra_handlers=handlers, read_only=read_only
            )
        self.tools: tuple[Tool[Any, Any], ...] = tuple(tools)
        self._descriptions = [describe_tool(tool) for tool in self.tools]
        self._readers = frozenset(
            name for tool in self.tools if tool.read_only for name in (tool.name, *tool.other_names)
        )
        self._policies = tuple(policies)
        self._max_result_characters = max_result_characters
        self._clients = ClientRegistry()
        self._executors: dict[McpClient, ToolExecutor] = {}
        self._lock = Lock()
        self._queue = CallQueue()
        self._call_ids = count(1)
        self._executor(
            McpClient("client", 0)
        )  # tools with the same name are an error of the caller

    def create_server(self) -> Server[Any]:
        """Return a server that offers this workspace and nothing else."""
        server: Server[Any] = Server(
            NAME,
            version=__version__,
            title="Workspace with undo",
            instructions=_INSTRUCTIONS,
        )
        self.mount(server)
        return server

    def mount(self, server: Server[Any]) -> None:
        """Add the workspace to a low-level server; it replaces the server's own tools."""
        server.add_request_handler("tools/list", PaginatedRequestParams, self.list_tools)
        server.add_request_handler("tools/call", CallToolRequestParams, self.call_tool)

    def close(self) -> None:
        """Cancel the calls that wait, and return when none runs any more."""
        self._queue.close()

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
        runs is awaited, because it may still change files.
        """
        client = self._clients.identify(context)
        arguments = params.arguments or {}
        call = ToolCall(params.name, arguments, f"{client}-{next(self._call_ids)}")
        try:
            running = self._queue.submit(
                partial(self.execute, call, client),
                exclusive=params.name not in self._readers,
                size=_size(arguments),
            )
        except WinkError as error:
            return error_result(str(error))
        return await _wait(running)

    def execute(self, call: ToolCall, client: McpClient) -> CallToolResult:
        """Run a call now, in this thread."""
        try:
            outcome = self._executor(client).execute(call)
            return to_result(outcome, self.filesystem)
        except WinkError as error:
            return error_result(f"{call.name} failed and changed nothing: {error}")

    def _executor(self, client: McpClient) -> ToolExecutor:
        with self._lock:
            found = self._executors.get(client)
            if found is None:
                context = ToolContext(client, None, None, self.session, filesystem=self.filesystem)
                found = self._executors[client] = ToolExecutor(
                    self.tools,
                    context=context,
                    policies=self._policies,
                    max_result_characters=self._max_result_characters,
                )
            return found


async def _wait(running: "Future[CallToolResult]") -> CallToolResult:
    """Return the result of a call; if this task is cancelled, the call is, too."""
    waiting = asyncio.wrap_future(running)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not running.cancel():
            with anyio.CancelScope(shield=True):
                await asyncio.wait([waiting])
        raise


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
