"""Handlers of the protocol's requests: tools, resources, subscriptions and roots."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from mcp.server import ServerRequestContext
from mcp.server.subscriptions import SubscriptionBus
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
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from weakincentives.adapters.loop.executor import error_message
from weakincentives.errors import WinkError
from weakincentives.mcp.calls import RunningCall, wait_for
from weakincentives.mcp.clients import ClientRegistry, McpClient
from weakincentives.mcp.execution import CallExecution
from weakincentives.mcp.resources import WorkspaceResources
from weakincentives.mcp.results import error_result
from weakincentives.mcp.roots import ClientRoots
from weakincentives.mcp.tools import describe_tool
from weakincentives.prompt import Tool

_RESOURCE_NOT_FOUND = -32002
T = TypeVar("T")


class RequestHandlers:
    """Answers the requests of clients."""

    def __init__(
        self,
        tools: Sequence[Tool[Any, Any]],
        *,
        execution: CallExecution,
        resources: WorkspaceResources,
        roots: ClientRoots,
        on_client: Callable[[McpClient], object] | None,
    ) -> None:
        """Offer `tools` and `resources`; call `on_client` for each new client."""
        self._descriptions = [describe_tool(tool) for tool in tools]
        self._execution = execution
        self._resources = resources
        self._roots = roots
        self._clients = ClientRegistry(on_client)

    def owns_tool(self, name: str) -> bool:
        """Return whether a tool belongs to the workspace."""
        return self._execution.has_tool(name)

    def owns_resource(self, uri: str) -> bool:
        """Return whether a resource belongs to the workspace."""
        return uri.startswith(("wink://", self._resources.uri("")))

    @property
    def bus(self) -> SubscriptionBus:
        """Carries changes of resources to the clients that listen."""
        return self._resources.bus

    async def list_tools(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams
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
        running = RunningCall(params.name)
        try:
            await self._roots.ask(context, client)
            future = self._execution.submit(params.name, params.arguments or {}, client, running)
        except (WinkError, TimeoutError) as error:
            return error_result(str(error))
        has_token = context.meta is not None and context.meta.get("progress_token") is not None
        report = partial(_report, context) if has_token else None
        result = await wait_for(future, running, report)
        structured = cast("dict[str, Any]", result.structured_content or {})
        changed: Sequence[str] = structured.get("changed", ())
        if changed:
            await self._resources.notify(changed)
        return result

    async def list_resources(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> ListResourcesResult:
        """Return a page of the resources: the handler of `resources/list`."""
        return await self._read(context, lambda client: self._resources.list(client, params.cursor))

    async def list_resource_templates(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        """Return templates of URIs: the handler of `resources/templates/list`."""
        del context, params
        return self._resources.templates()

    async def read_resource(
        self, context: ServerRequestContext[Any, Any], params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        """Return the content of a resource: the handler of `resources/read`."""
        uri = str(params.uri)
        return await self._read(context, lambda client: self._resources.read(client, uri))

    async def subscribe(
        self, context: ServerRequestContext[Any, Any], params: SubscribeRequestParams
    ) -> EmptyResult:
        """Notify a client of changes: the handler of `resources/subscribe`."""
        self._resources.subscribe(context, self._clients.identify(context), str(params.uri))
        return EmptyResult()

    async def unsubscribe(
        self, context: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """End notifications of changes: the handler of `resources/unsubscribe`."""
        self._resources.unsubscribe(self._clients.identify(context), str(params.uri))
        return EmptyResult()

    async def on_roots_changed(
        self, context: ServerRequestContext[Any, Any], params: NotificationParams
    ) -> None:
        """Ask a client for its roots again: the handler of `notifications/roots/list_changed`."""
        del params
        self._roots.forget(self._clients.identify(context))

    async def _read(
        self, context: ServerRequestContext[Any, Any], read: Callable[[McpClient], T]
    ) -> T:
        """Run a request that only reads, in its turn.

        Raises:
            MCPError: It failed; the message says why.
        """
        client = self._clients.identify(context)
        running = RunningCall(context.method)
        try:
            await self._roots.ask(context, client)
            future = self._execution.submit_read(partial(read, client), running)
            return await wait_for(future, running)
        except FileNotFoundError as error:
            # versions without a handshake have no code of their own for it
            is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            code = INVALID_PARAMS if is_modern else _RESOURCE_NOT_FOUND
            raise MCPError(code, error_message(error)) from error
        except (OSError, ValueError, WinkError) as error:
            raise MCPError(INVALID_PARAMS, error_message(error)) from error


async def _report(context: ServerRequestContext[Any, Any], progress: float, message: str) -> None:
    await context.session.report_progress(progress, message=message)
