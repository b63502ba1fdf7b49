"""The debug server: a web page over recorded sessions, for one person on this machine.

A guard asks every request for a token, the right Host and Origin, and lets it only read.
`weakincentives.loopback` says why. The token is never sent along by another site.
"""

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from threading import Thread

from weakincentives.extras import needs_extra

with needs_extra("wink debug", "debug"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weakincentives.debug.recording import RecordingError
from weakincentives.debug.routes import Routes, error_response
from weakincentives.debug.store import SnapshotStore
from weakincentives.loopback import (
    LOOPBACK,
    RemoteHostError,
    create_token,
    has_bearer_token,
    is_own_host,
    is_own_origin,
    is_token,
    listen,
)

__all__ = ["LOOPBACK", "DebugServer", "RemoteHostError", "ServerAddress", "create_app"]

_SHUTDOWN_SECONDS = 1
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""What every answer carries."""
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server listens, and the token that it asks for."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """The URL to open; the page's own URL has no token any more."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/?token={self.token}"


def create_app(store: SnapshotStore, address: ServerAddress) -> ASGIApp:
    """Return the application; the guard is outermost, so that errors pass it too."""
    app = Starlette(
        routes=Routes(store).all(),
        exception_handlers={HTTPException: _http_error, Exception: _unexpected_error},
    )
    return Guard(app, token=address.token, host=address.host, port=address.port)


class Guard:
    """Middleware that answers only requests with the token, from this page or a program."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int) -> None:
        """Protect `app`, which listens on `host` and `port`."""
        self._app = app
        self._token = token
        self._host = host
        self._port = port
        self._cookie = f"wink-debug-{port}"  # cookies are shared by all ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or reject it."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        answer = self._reject(request) or self._admit(request) or self._app
        await answer(scope, receive, _with_headers(send))

    def _reject(self, request: Request) -> Response | None:
        """Return the answer to a request that did not come from this page or a program."""
        headers = request.headers
        host = headers.get("host", "")
        if not is_own_host(host, host=self._host, port=self._port):
            return error_response(
                HTTPStatus.FORBIDDEN, "The Host header is not the address of this server"
            )
        if not is_own_origin(headers.get("origin"), host):
            return error_response(HTTPStatus.FORBIDDEN, "Requests of other origins are rejected")
        if request.method not in {"GET", "HEAD"}:
            return error_response(
                HTTPStatus.METHOD_NOT_ALLOWED, "This server is read-only: use GET or HEAD"
            )
        return None

    def _admit(self, request: Request) -> Response | None:
        """Return the answer to a request without a valid token, or with one in its URL."""
        given = request.query_params.get("token")
        if request.url.path == "/" and given is not None and is_token(given, self._token):
            answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
            answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
            return answer
        if self._has_token(request.headers):
            return None
        return error_response(
            HTTPStatus.UNAUTHORIZED,
            "A token is needed: open the URL that wink debug printed,"
            " or send it as Authorization: Bearer TOKEN",
        )

    def _has_token(self, headers: Headers) -> bool:
        if has_bearer_token(headers.get("authorization", ""), self._token):
            return True
        if headers.get("sec-fetch-site") in _FOREIGN_SITES:
            return False  # a page of another port on this machine is of the same site
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and is_token(found.value, self._token)


class DebugServer:
    """A server that is bound to its port, and serves until it is stopped."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        allow_remote: bool = False,
    ) -> None:
        """Bind to `port`, by default a free one.

        Raises:
            RemoteHostError: Other machines reach the host, and `allow_remote` is not set.
            OSError: The port is in use, or the host is not this machine.
        """
        self._store = store
        self._socket = listen(host, port, allow_remote=allow_remote)
        self.address: ServerAddress = ServerAddress(
            host, self._socket.getsockname()[1], create_token()
        )
        config = uvicorn.Config(
            create_app(store, self.address),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def serve(self, ready: Callable[[], object] | None = None) -> None:
        """Serve until stopped; call `ready` first: connections already succeed then."""
        if ready is not None:
            ready()
        Thread(target=self._read_ahead, name="wink-debug", daemon=True).start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def _read_ahead(self) -> None:
        """Open the newest session while the browser starts."""
        session = self._store.session()
        with suppress(RecordingError), session.lock:
            session.open()
            gc.freeze()  # the collector would visit every step again and again, and find nothing

    def stop(self) -> None:
        """Make `serve` return soon; from any thread."""
        self._server.should_exit = True


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    text = f"There is nothing at {request.url.path!r}" if status == HTTPStatus.NOT_FOUND else None
    return error_response(status, text or status.phrase)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    del request
    return error_response(
        HTTPStatus.INTERNAL_SERVER_ERROR, f"This is a bug, please report it: {error!r}"
    )


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                if name not in headers:
                    headers[name] = value
        await send(message)

    return send_with_headers
