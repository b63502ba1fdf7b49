"""Handlers of the protocol's requests, and how they are added to a server."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from mcp.types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from weakincentives.adapters.loop.executor import error_message
from weakincentives.errors import ToolValidationError, WinkError
from weakincentives.mcp.calls import CallExecution, error_result, without_structure
from weakincentives.mcp.clients import ClientRegistry, ClientRoots, McpClient, put_newest
from weakincentives.mcp.resources import DIFF, LOG, WorkspaceResources

_RESOURCE_NOT_FOUND = -32002
_LISTS = frozenset({"tools/list", "resources/list", "resources/templates/list"})
_ROOTS_CHANGED = "notifications/roots/list_changed"
_MAX_SUBSCRIPTIONS = 1_000  # per client
_MAX_CLIENTS = 1_000
_OUR_PAGE = "wink:"  # begins the cursors of our pages
T = TypeVar("T")
P = TypeVar("P", bound=BaseModel)
Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, P], Awaitable[HandlerResult]]


class Subscriptions:
    """Notifies clients when a call has changed a resource that they subscribed to."""

    def __init__(self, uri: Callable[[str], str]) -> None:
        """Notify nobody; `uri` returns the URI of a file."""
        self.bus: InMemorySubscriptionBus = InMemorySubscriptionBus()
        """Carries changes to the listeners of protocol versions without a handshake."""
        self._uri = uri
        self._subscribers: OrderedDict[McpClient, tuple[ServerSession, set[str]]] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, context: Context, client: McpClient, uri: str) -> None:
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
class RequestHandlers:
    """Answers the requests of clients."""

    tools: Sequence[McpTool]
    execution: CallExecution
    resources: WorkspaceResources
    subscriptions: Subscriptions
    roots: ClientRoots
    clients: ClientRegistry
    text_only: bool | None = None
    """Whether results are text only; None asks the name of the client."""

    async def list_tools(self, context: Context, params: PaginatedRequestParams) -> ListToolsResult:
        """Return the tools: the handler of `tools/list`."""
        del params  # all tools fit into one page
        tools = [*self.tools]
        if self._is_text_only(self.clients.identify(context)):
            tools = [each.model_copy(update={"output_schema": None}) for each in tools]
        return ListToolsResult(tools=tools)

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
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
        has_token = context.meta is not None and context.meta.get("progress_token") is not None
        report = partial(_report, context) if has_token else None
        result, changed = await call.wait(report)
        if changed:
            await self.subscriptions.notify(changed)
        return without_structure(result) if self._is_text_only(client) else result

    async def list_resources(
        self, context: Context, params: PaginatedRequestParams
    ) -> ListResourcesResult:
        """Return a page of the resources: the handler of `resources/list`."""
        return await self._read(context, lambda client: self.resources.list(client, params.cursor))

    async def list_resource_templates(
        self, context: Context, params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        """Return templates of URIs: the handler of `resources/templates/list`."""
        del context, params
        return self.resources.templates()

    async def read_resource(
        self, context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        """Return the content of a resource: the handler of `resources/read`."""
        uri = str(params.uri)
        return await self._read(context, lambda client: self.resources.read(client, uri))

    async def subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        """Notify a client of changes: the handler of `resources/subscribe`."""
        self.subscriptions.add(context, self.clients.identify(context), str(params.uri))
        return EmptyResult()

    async def unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        """End notifications of changes: the handler of `resources/unsubscribe`."""
        self.subscriptions.remove(self.clients.identify(context), str(params.uri))
        return EmptyResult()

    async def on_roots_changed(self, context: Context, params: NotificationParams) -> None:
        """Ask a client for its roots again: the handler of `notifications/roots/list_changed`."""
        del params
        self.roots.forget(self.clients.identify(context))

    def _is_text_only(self, client: McpClient) -> bool:
        return client.is_text_only if self.text_only is None else self.text_only

    async def _read(self, context: Context, read: Callable[[McpClient], T]) -> T:
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
            code = INVALID_PARAMS if is_modern else _RESOURCE_NOT_FOUND
            raise MCPError(code, error_message(error)) from error
        except (OSError, ValueError, WinkError) as error:
            raise MCPError(INVALID_PARAMS, error_message(error)) from error


async def _report(context: Context, progress: float, message: str) -> None:
    await context.session.report_progress(progress, message=message)


def mount(server: Server[Any] | MCPServer, handlers: RequestHandlers) -> None:
    """Add a workspace to a server: handlers where it has none, else in front of its own."""
    lists = _LISTS
    if isinstance(server, Server):
        lists = frozenset(each for each in _LISTS if server.get_request_handler(each) is not None)
        _add_handlers(server, handlers)
    if lists:
        server.middleware.append(_OverlayMiddleware(handlers, lists))


def _add_handlers(server: Server[Any], ours: RequestHandlers) -> None:
    def add(method: str, params: type[P], handler: Handler[P]) -> None:
        if server.get_request_handler(method) is None:
            server.add_request_handler(method, params, handler)

    listen = ListenHandler(ours.subscriptions.bus)
    add("tools/list", PaginatedRequestParams, ours.list_tools)
    add("tools/call", CallToolRequestParams, ours.call_tool)
    add("resources/list", PaginatedRequestParams, ours.list_resources)
    add("resources/templates/list", PaginatedRequestParams, ours.list_resource_templates)
    add("resources/read", ReadResourceRequestParams, ours.read_resource)
    add("resources/subscribe", SubscribeRequestParams, ours.subscribe)
    add("resources/unsubscribe", UnsubscribeRequestParams, ours.unsubscribe)
    add("subscriptions/listen", SubscriptionsListenRequestParams, listen)
    if server.get_notification_handler(_ROOTS_CHANGED) is None:
        server.add_notification_handler(_ROOTS_CHANGED, NotificationParams, ours.on_roots_changed)


@dataclass(frozen=True, slots=True)
class _OverlayMiddleware:
    """Answers requests for a workspace, and adds its lists to those of the server."""

    handlers: RequestHandlers
    lists: frozenset[str]
    """The lists that the server has itself."""

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Handle one request."""
        context, ours = ctx, self.handlers
        params = dict(context.params or {})
        first = PaginatedRequestParams()
        match context.method:
            case "tools/call" if ours.execution.has_tool(str(params.get("name"))):
                call = CallToolRequestParams.model_validate(params, by_name=False)
                return await ours.call_tool(context, call)
            case "resources/read" if ours.resources.owns(str(params.get("uri"))):
                read = ReadResourceRequestParams.model_validate(params, by_name=False)
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
                    await ours.on_roots_changed(context, NotificationParams())
                return await call_next(context)

    async def _list_resources(
        self, context: Context, params: Mapping[str, Any], call_next: CallNext
    ) -> HandlerResult:
        cursor = params.get("cursor")
        theirs: HandlerResult = None
        if not str(cursor or "").startswith(_OUR_PAGE):
            theirs = await call_next(context)
            cursor = None
            if _dump(theirs).get("nextCursor") is not None:
                return theirs
        after = None if cursor is None else str(cursor).removeprefix(_OUR_PAGE)
        page = PaginatedRequestParams(cursor=after or None)
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
