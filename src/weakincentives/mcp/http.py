"""Serve a workspace over streamable HTTP: on this machine, with a token, to several clients."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import uvicorn
from mcp.server.streamable_http_manager import (
    StreamableHTTPASGIApp,
    StreamableHTTPSessionManager,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from weakincentives.loopback import (
    LOOPBACK,
    create_token,
    has_bearer_token,
    is_own_host,
    is_own_origin,
    listen,
)
from weakincentives.mcp.workspace import McpWorkspace

__all__ = ["PATH", "HttpAddress", "HttpLimits", "HttpServer", "create_app"]

PATH = "/mcp"
"""The only path that answers."""
_SHUTDOWN_SECONDS = 2
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take up."""

    max_body_bytes: int = 16 * 1024 * 1024
    """The largest request."""
    max_sessions: int = 64
    """Clients that are connected at the same time; a further one gets status 503."""
    idle_seconds: float = 30 * 60
    """A client that sends nothing for this long has to connect again."""
    max_connections: int = 256
    """Connections at the same time; further ones get status 503."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where the server listens, and the token that it asks for."""

    host: str
    port: int
    token: str = field(repr=False)

    @property
    def url(self) -> str:
        """The URL for clients; the token belongs into the Authorization header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"


class HttpServer:
    """A workspace that is bound to a port, and served until it is stopped."""

    def __init__(
        self,
        workspace: McpWorkspace,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        token: str | None = None,
        allow_remote: bool = False,
        limits: HttpLimits | None = None,
    ) -> None:
        """Bind to `port`, by default a free one.

        Args:
            workspace: The workspace; closing it is up to the caller.
            host: The address to listen on.
            port: The port.
            token: What clients send as `Authorization: Bearer TOKEN`; by default a new one.
            allow_remote: Whether other machines may reach the host.
            limits: What a client may take up.

        Raises:
            RemoteHostError: Other machines reach the host, and `allow_remote` is not set.
            OSError: The port is in use, or the host is not this machine.
        """
        limits = limits or HttpLimits()
        self._socket = listen(host, port, allow_remote=allow_remote)
        self.address: HttpAddress = HttpAddress(
            host, self._socket.getsockname()[1], token or create_token()
        )
        config = uvicorn.Config(
            create_app(workspace, self.address, limits),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def serve(self, ready: Callable[[], object] | None = None) -> None:
        """Serve until stopped; call `ready` first: connections already succeed then."""
        if ready is not None:
            ready()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `serve` return soon; from any thread."""
        self._server.should_exit = True


def create_app(
    workspace: McpWorkspace, address: HttpAddress, limits: HttpLimits | None = None
) -> ASGIApp:
    """Return the application; the check of the token is outermost, so it covers every path."""
    limits = limits or HttpLimits()
    manager = StreamableHTTPSessionManager(
        workspace.create_server(),
        session_idle_timeout=limits.idle_seconds,
        max_request_body_size=limits.max_body_bytes,
        max_sessions=limits.max_sessions,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with manager.run():
            yield

    app = Starlette(
        routes=[Route(PATH, endpoint=StreamableHTTPASGIApp(manager))],
        lifespan=lifespan,
        exception_handlers={HTTPStatus.NOT_FOUND: _not_found},
    )

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif scope["type"] == "http":
            answer = _reject(Request(scope), address) or app
            await answer(scope, receive, send)

    return guard


def _reject(request: Request, address: HttpAddress) -> Response | None:
    """Return the answer to a request without the token, or not of a program on this machine."""
    headers = request.headers
    host = headers.get("host", "")
    if not is_own_host(host, host=address.host, port=address.port):
        return _error(HTTPStatus.FORBIDDEN, "The Host header is not the address of this server")
    if not is_own_origin(headers.get("origin"), host):
        return _error(HTTPStatus.FORBIDDEN, "Requests of other origins are rejected")
    if not has_bearer_token(headers.get("authorization", ""), address.token):
        return _error(
            HTTPStatus.UNAUTHORIZED,
            "A token is needed: send the one that wink mcp printed, or that you gave it, as"
            " Authorization: Bearer TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )
    return None


async def _not_found(request: Request, error: Exception) -> Response:
    del error
    path = json.dumps(request.url.path)
    return _error(HTTPStatus.NOT_FOUND, f"There is nothing at {path}; the server is at {PATH}")


def _error(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as JSON, with a sentence."""
    return JSONResponse({"error": message}, status, {**_HEADERS, **(headers or {})})
