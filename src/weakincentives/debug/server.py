"""The debug server: a web page over recorded sessions, for one person on this machine."""

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from threading import Thread

from weakincentives.extras import describe_missing

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(describe_missing("wink debug", "debug"), name=_error.name) from _error

from weakincentives.debug.guard import Guard, error_response
from weakincentives.debug.recording import RecordingError
from weakincentives.debug.routes import Routes
from weakincentives.debug.store import SnapshotStore
from weakincentives.loopback import LOOPBACK, RemoteHostError, create_token, listen

__all__ = ["LOOPBACK", "DebugServer", "RemoteHostError", "ServerAddress", "create_app"]

_SHUTDOWN_SECONDS = 1


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
