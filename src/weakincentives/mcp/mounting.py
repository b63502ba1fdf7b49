"""Mount a workspace in a server that has tools and resources of its own."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import ListenHandler
from mcp.types import (
    CallToolRequestParams,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel

from weakincentives.mcp.handlers import RequestHandlers

P = TypeVar("P", bound=BaseModel)
Context: TypeAlias = ServerRequestContext[Any, Any]
Handler: TypeAlias = Callable[[Context, P], Awaitable[HandlerResult]]
_LISTS = frozenset({"tools/list", "resources/list", "resources/templates/list"})
_OUR_PAGE = "wink:"  # begins the cursors of our pages


def mount(server: Server[Any] | MCPServer, handlers: RequestHandlers) -> None:
    """Add a workspace to a server: handlers where it has none, else in front of its own."""
    lists = _LISTS
    if isinstance(server, Server):
        lists = frozenset(each for each in _LISTS if server.get_request_handler(each) is not None)
        _add_handlers(server, handlers)
    if lists:
        server.middleware.append(_OverlayMiddleware(handlers, lists))


def _add_handlers(server: Server[Any], handlers: RequestHandlers) -> None:
    listen = ListenHandler(handlers.bus)

    def add(method: str, params: type[P], handler: Handler[P]) -> None:
        if server.get_request_handler(method) is None:
            server.add_request_handler(method, params, handler)

    add("tools/list", PaginatedRequestParams, handlers.list_tools)
    add("tools/call", CallToolRequestParams, handlers.call_tool)
    add("resources/list", PaginatedRequestParams, handlers.list_resources)
    add("resources/templates/list", PaginatedRequestParams, handlers.list_resource_templates)
    add("resources/read", ReadResourceRequestParams, handlers.read_resource)
    add("resources/subscribe", SubscribeRequestParams, handlers.subscribe)
    add("resources/unsubscribe", UnsubscribeRequestParams, handlers.unsubscribe)
    add("subscriptions/listen", SubscriptionsListenRequestParams, listen)
    changed = "notifications/roots/list_changed"
    if server.get_notification_handler(changed) is None:
        server.add_notification_handler(changed, NotificationParams, handlers.on_roots_changed)


@dataclass(frozen=True, slots=True)
class _OverlayMiddleware:
    """Answers requests for a workspace, and adds its lists to those of the server."""

    handlers: RequestHandlers
    lists: frozenset[str]
    """The lists that the server has itself."""

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Handle one request."""
        context = ctx
        ours = self.handlers
        params = dict(context.params or {})
        match context.method:
            case "tools/call" if ours.owns_tool(str(params.get("name"))):
                return await ours.call_tool(context, _validate(CallToolRequestParams, params))
            case "resources/read" if ours.owns_resource(str(params.get("uri"))):
                return await ours.read_resource(
                    context, _validate(ReadResourceRequestParams, params)
                )
            case method if method in _LISTS - self.lists:
                return await call_next(context)
            case "tools/list":
                found = await ours.list_tools(context, PaginatedRequestParams())
                return _join(await call_next(context), found, "tools")
            case "resources/templates/list":
                templates = await ours.list_resource_templates(context, PaginatedRequestParams())
                return _join(await call_next(context), templates, "resourceTemplates")
            case "resources/list":
                return await self._list_resources(context, params, call_next)
            case "notifications/roots/list_changed":
                await ours.on_roots_changed(context, NotificationParams())
                return await call_next(context)
            case _:
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


def _validate(kind: Any, params: Mapping[str, Any]) -> Any:
    return kind.model_validate(params, by_name=False)
