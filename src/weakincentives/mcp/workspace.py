"""An MCP workspace: tools on files for several clients, each call a transaction.

`McpWorkspace` is put together here, with the handlers of the protocol's requests.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from mcp import types
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from weakincentives import __version__
from weakincentives.adapters import MAX_RESULT_CHARACTERS, Policy, ToolExecutor, error_message
from weakincentives.contrib.evaluation import Engine
from weakincentives.contrib.tools import (
    Handler,
    HandlerContext,
    ToolSettings,
    WorkspaceParams,
    WriteFileParams,
    evaluation_handlers,
    filesystem_tools,
    repo_map_handlers,
)
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import DEFAULT_SHELL_LIMITS, ShellLimits, shell_handlers
from weakincentives.errors import ToolValidationError, WinkError
from weakincentives.filesystem import Filesystem, HostBacked
from weakincentives.mcp.calls import CallExecution, CallQueue, error_result, without_structure
from weakincentives.mcp.clients import (
    ClientRegistry,
    ClientRoots,
    KnownFiles,
    McpClient,
    file_uri,
    put_newest,
)
from weakincentives.mcp.history import open_history
from weakincentives.mcp.history_tools import HistoryTools
from weakincentives.mcp.resources import DIFF, LOG, WorkspaceResources
from weakincentives.mcp.tools import describe_tool
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.sandbox import Sandbox

NAME = "weakincentives"
"""The name of the server."""
_UNDO_ADVICE = "These changes are in the directory itself. Undo some or all of them with `undo`."
_INSTRUCTIONS = """\
Files of {root} with undo. Each call is a transaction: a call that fails changes nothing. `diff` \
shows what was changed, `undo` undoes calls, `checkpoint` keeps a state to go back to."""
_RESOURCE_NOT_FOUND = -32002
_LISTS = frozenset({"tools/list", "resources/list", "resources/templates/list"})
_ROOTS_CHANGED = "notifications/roots/list_changed"
_MAX_SUBSCRIPTIONS = 1_000  # per client
_MAX_CLIENTS = 1_000
_OUR_PAGE = "wink:"  # begins the cursors of our pages
T = TypeVar("T")
P = TypeVar("P", bound=BaseModel)
_Context: TypeAlias = ServerRequestContext[Any, Any]
_RequestHandler: TypeAlias = Callable[[_Context, P], Awaitable[HandlerResult]]


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
        history_directory: str | os.PathLike[str] | None = None,
        on_client: Callable[[McpClient], object] | None = None,
        policies: Sequence[Policy] = (),
        settings: ToolSettings = ToolSettings(ascii_paths=False),  # noqa: B008 # it is frozen
        shell_limits: ShellLimits = DEFAULT_SHELL_LIMITS,
        max_result_characters: int = MAX_RESULT_CHARACTERS,
        text_only: bool | None = None,
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
            history_directory: Where calls are kept, outside the workspace, so that a later session
                on the same directory and snapshots can undo them; by default none are.
            on_client: Called once for each client, with its first request.
            policies: Policies that may deny a call, checked in this order.
            settings: Limits and rules of the tools.
            shell_limits: Limits of the commands.
            max_result_characters: The maximum length of a result; longer text is truncated.
            text_only: Send results as text, without structured content; by default for clients
                that show their model nothing else of a result that has it.

        Raises:
            PromptError: The dialect is unknown, or two tools have the same name.
        """
        self.filesystem: Filesystem = filesystem
        self.session: Session = Session() if session is None else session
        roots = _host_roots(filesystem, original)
        self._settings = replace(settings, host_roots=settings.host_roots or roots)
        self._root = next(iter(self._settings.host_roots), filesystem.root)
        self._roots = ClientRoots(self._settings.host_roots)
        self._queue = CallQueue()
        read_only = read_only or filesystem.read_only
        kept = None if history_directory is None else Path(history_directory)
        history = open_history(filesystem, kept)
        known = KnownFiles(history)
        if tools is None:
            handlers = self._tool_handlers(sandbox, engine, shell_limits)
            handlers |= {WriteFileParams: known.write_file, **(extra_handlers or {})}
            tools = filesystem_tools(
                dialect, settings=self._settings, extra_handlers=handlers, read_only=read_only
            )
        history_tools: HistoryTools | None = None
        if history is not None:
            history_tools = HistoryTools(
                history=history,
                read_only=read_only,
                resolve=self._resolve,
                is_visible=self._roots.allows,
                advice=review_hint,
                max_characters=self._settings.budget,
            )
            tools = (*tools, *history_tools.create())
        self.tools: tuple[Tool[Any, Any], ...] = tuple(tools)
        uri = partial(file_uri, self._root)
        resources = WorkspaceResources(
            filesystem=filesystem,
            uri=uri,
            session=self.session,
            resolve=self._resolve,
            is_visible=self._roots.allows,
            diff=None if history_tools is None else history_tools.diff_since,
        )
        self._history = history
        self._execution = CallExecution(
            self.tools,
            ToolContext(None, None, None, self.session, filesystem=filesystem),
            self._queue,
            create_executor=partial(
                ToolExecutor,
                policies=(self._roots, known, *policies),
                max_result_characters=max_result_characters,
            ),
            history=history,
            uri=uri,
        )
        self._handlers = _RequestHandlers(
            tools=[*map(describe_tool, self.tools)],
            execution=self._execution,
            resources=resources,
            subscriptions=_Subscriptions(uri),
            roots=self._roots,
            clients=ClientRegistry(on_client),
            text_only=text_only,
        )

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

    def mount(self, server: Server[Any] | MCPServer) -> None:
        """Add handlers of the workspace to a server where it has none, else in front of its own.

        A tool of the workspace takes the place of one with the same name.
        """
        lists, handlers = _LISTS, self._handlers
        if isinstance(server, Server):
            lists = frozenset(each for each in lists if server.get_request_handler(each))
            _add_handlers(server, handlers)
        if lists:
            server.middleware.append(_OverlayMiddleware(handlers, lists))

    def start(self) -> None:
        """Keep the present state as the start, and list what an earlier server left unfinished.

        The first call does it otherwise. Start before anything else listens to the changes of
        the filesystem: what was not reported to the earlier server is reported once.

        Raises:
            SnapshotError: The state could not be kept.
            OSError: The calls of earlier sessions cannot be read.
            LogError: The same.
        """
        if self._history is not None:
            self._history.start()

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        self._execution.close()

    def _tool_handlers(
        self, sandbox: Sandbox | None, engine: Engine | None, limits: ShellLimits
    ) -> dict[type[Any], Handler]:
        handlers: dict[type[Any], Handler] = {
            **repo_map_handlers(),
            WorkspaceParams: self._allowed_directories,
        }
        if sandbox is not None:
            handlers |= shell_handlers(sandbox, limits=limits, on_output=self._queue.on_output)
        if engine is not None:
            handlers |= evaluation_handlers(engine)
        return handlers

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

    def _resolve(self, path: str) -> str:
        context = ToolContext(None, None, None, self.session, filesystem=self.filesystem)
        return HandlerContext(context, self.filesystem, self._settings).resolve_path(path)


def _host_roots(filesystem: Filesystem, original: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Return the directories of the host that stand for the workspace, the best name first."""
    names = [] if original is None else [os.fspath(original)]
    names += [filesystem.root] if isinstance(filesystem, HostBacked) else []
    absolute = [os.path.abspath(name) for name in names]  # noqa: PTH100 # the spelling, links kept
    return tuple(dict.fromkeys([*absolute, *map(os.path.realpath, absolute)]))


# --- the requests of the protocol ---


class _Subscriptions:
    """Notifies clients when a call has changed a resource that they subscribed to."""

    def __init__(self, uri: Callable[[str], str]) -> None:
        """Notify nobody; `uri` returns the URI of a file."""
        self.bus: InMemorySubscriptionBus = InMemorySubscriptionBus()
        """Carries changes to the listeners of protocol versions without a handshake."""
        self._uri = uri
        self._subscribers: OrderedDict[McpClient, tuple[ServerSession, set[str]]] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, context: _Context, client: McpClient, uri: str) -> None:
        """Notify a client when a resource has changed.

        Raises:
            ToolValidationError: It has too many subscriptions.
        """
        uris = self._subscribers[client][1] if client in self._subscribers else set[str]()
        if len(uris) >= _MAX_SUBSCRIPTIONS:
            raise ToolValidationError(f"At most {_MAX_SUBSCRIPTIONS:,} subscriptions are possible")
        uris.add(uri)
        put_newest(self._subscribers, client, (context.session, uris), _MAX_CLIENTS)

    def remove(self, client: McpClient, uri: str) -> None:
        """End a subscription."""
        if client in self._subscribers:
            self._subscribers[client][1].discard(uri)

    async def notify(self, paths: Sequence[str]) -> None:
        """Notify clients that a call has changed files."""
        changed = [*map(self._uri, paths), f"{DIFF}start", LOG]
        for uri in changed:
            await self.bus.publish(ResourceUpdated(uri))
        for session, uris in tuple(self._subscribers.values()):
            for uri in filter(uris.__contains__, changed):
                # a client that does not read must not delay the others
                task = asyncio.create_task(session.send_resource_updated(uri))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestHandlers:
    """Answers the requests of clients."""

    tools: Sequence[types.Tool]
    execution: CallExecution
    resources: WorkspaceResources
    subscriptions: _Subscriptions
    roots: ClientRoots
    clients: ClientRegistry
    text_only: bool | None = None
    """Whether results are text only; None asks the name of the client."""

    async def list_tools(
        self, context: _Context, params: types.PaginatedRequestParams
    ) -> types.ListToolsResult:
        """Return the tools: the handler of `tools/list`."""
        del params  # all tools fit into one page
        tools = [*self.tools]
        if self._is_text_only(self.clients.identify(context)):
            tools = [each.model_copy(update={"output_schema": None}) for each in tools]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Run a call: the handler of `tools/call`.

        A call that is cancelled before its turn does not run. One that is cancelled while it
        runs is stopped and rolled back.
        """
        client = self.clients.identify(context)
        try:
            await self.roots.ask(context, client)
            call = self.execution.submit(params.name, params.arguments or {}, client)
        except (WinkError, TimeoutError) as error:
            return error_result(str(error))
        result, changed = await call.wait(context.session.report_progress)
        if changed:
            await self.subscriptions.notify(changed)
        return without_structure(result) if self._is_text_only(client) else result

    async def list_resources(
        self, context: _Context, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        """Return a page of the resources: the handler of `resources/list`."""
        return await self._read(context, lambda client: self.resources.list(client, params.cursor))

    async def list_resource_templates(
        self, context: _Context, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        """Return templates of URIs: the handler of `resources/templates/list`."""
        del context, params
        return self.resources.templates()

    async def read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return the content of a resource: the handler of `resources/read`."""
        uri = str(params.uri)
        return await self._read(context, lambda client: self.resources.read(client, uri))

    async def subscribe(
        self, context: _Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Notify a client of changes: the handler of `resources/subscribe`."""
        self.subscriptions.add(context, self.clients.identify(context), str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(
        self, context: _Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """End notifications of changes: the handler of `resources/unsubscribe`."""
        self.subscriptions.remove(self.clients.identify(context), str(params.uri))
        return types.EmptyResult()

    async def on_roots_changed(self, context: _Context, params: types.NotificationParams) -> None:
        """Ask a client for its roots again: the handler of `notifications/roots/list_changed`."""
        del params
        self.roots.forget(self.clients.identify(context))

    def _is_text_only(self, client: McpClient) -> bool:
        return client.is_text_only if self.text_only is None else self.text_only

    async def _read(self, context: _Context, read: Callable[[McpClient], T]) -> T:
        """Run a request that only reads, in its turn.

        Raises:
            MCPError: It failed; the message says why.
        """
        client = self.clients.identify(context)
        try:
            await self.roots.ask(context, client)
            return await self.execution.submit_read(context.method, partial(read, client)).wait()
        except FileNotFoundError as error:
            # versions without a handshake have no code of their own for it
            is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = types.INVALID_PARAMS if is_modern else _RESOURCE_NOT_FOUND
            raise MCPError(code, error_message(error)) from error
        except (OSError, ValueError, WinkError) as error:
            raise MCPError(types.INVALID_PARAMS, error_message(error)) from error


def _add_handlers(server: Server[Any], ours: _RequestHandlers) -> None:
    def add(method: str, params: type[P], handler: _RequestHandler[P]) -> None:
        if server.get_request_handler(method) is None:
            server.add_request_handler(method, params, handler)

    listen = ListenHandler(ours.subscriptions.bus)
    add("tools/list", types.PaginatedRequestParams, ours.list_tools)
    add("tools/call", types.CallToolRequestParams, ours.call_tool)
    add("resources/list", types.PaginatedRequestParams, ours.list_resources)
    add("resources/templates/list", types.PaginatedRequestParams, ours.list_resource_templates)
    add("resources/read", types.ReadResourceRequestParams, ours.read_resource)
    add("resources/subscribe", types.SubscribeRequestParams, ours.subscribe)
    add("resources/unsubscribe", types.UnsubscribeRequestParams, ours.unsubscribe)
    add("subscriptions/listen", types.SubscriptionsListenRequestParams, listen)
    if server.get_notification_handler(_ROOTS_CHANGED) is None:
        server.add_notification_handler(
            _ROOTS_CHANGED, types.NotificationParams, ours.on_roots_changed
        )


@dataclass(frozen=True, slots=True)
class _OverlayMiddleware:
    """Answers requests for a workspace, and adds its lists to those of the server."""

    handlers: _RequestHandlers
    lists: frozenset[str]
    """The lists that the server has itself."""

    async def __call__(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Handle one request."""
        context, ours = ctx, self.handlers
        params = dict(context.params or {})
        first = types.PaginatedRequestParams()
        match context.method:
            case "tools/call" if ours.execution.has_tool(str(params.get("name"))):
                call = types.CallToolRequestParams.model_validate(params, by_name=False)
                return await ours.call_tool(context, call)
            case "resources/read" if ours.resources.owns(str(params.get("uri"))):
                read = types.ReadResourceRequestParams.model_validate(params, by_name=False)
                return await ours.read_resource(context, read)
            case "tools/list" as method if method in self.lists:
                found = await ours.list_tools(context, first)
                return _join(await call_next(context), found, "tools")
            case "resources/templates/list" as method if method in self.lists:
                templates = await ours.list_resource_templates(context, first)
                return _join(await call_next(context), templates, "resourceTemplates")
            case "resources/list" as method if method in self.lists:
                return await self._list_resources(context, params, call_next)
            case method:
                if method == _ROOTS_CHANGED:
                    await ours.on_roots_changed(context, types.NotificationParams())
                return await call_next(context)

    async def _list_resources(
        self, context: _Context, params: Mapping[str, Any], call_next: CallNext
    ) -> HandlerResult:
        cursor = params.get("cursor")
        theirs: HandlerResult = None
        if not str(cursor or "").startswith(_OUR_PAGE):
            theirs = await call_next(context)
            cursor = None
            if _dump(theirs).get("nextCursor") is not None:
                return theirs
        after = None if cursor is None else str(cursor).removeprefix(_OUR_PAGE)
        page = types.PaginatedRequestParams(cursor=after or None)
        found = await self.handlers.list_resources(context, page)
        if found.next_cursor is not None:
            found = found.model_copy(update={"next_cursor": _OUR_PAGE + found.next_cursor})
        return found if theirs is None else _join(theirs, found, "resources")


def _join(theirs: HandlerResult, ours: BaseModel, key: str) -> dict[str, Any]:
    """Return a list of the server with ours after it, without names twice."""
    result, added = _dump(theirs), _dump(ours)
    if result.get("nextCursor") is not None:
        return result  # ours come with the last page
    names = {each["name"] for each in added[key]} if key == "tools" else set[str]()
    kept = [each for each in result.get(key, []) if each.get("name") not in names]
    result[key] = [*kept, *added[key]]
    if added.get("nextCursor") is not None:
        result["nextCursor"] = added["nextCursor"]
    return result


def _dump(result: HandlerResult) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})
