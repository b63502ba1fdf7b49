"""Who may ask: a token for every request, the right Host and Origin, and reading only.

A web page that the user visits can send requests to this server too, and with a name that
resolves to 127.0.0.1 it is even of the same origin (DNS rebinding). So the Host header must
be ours, a foreign Origin is rejected, and the token is never sent along by another site.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})


def create_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


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
        if not self._is_own_host(headers.get("host", "")):
            return error_response(
                HTTPStatus.FORBIDDEN, "The Host header is not the address of this server"
            )
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":
            return error_response(HTTPStatus.FORBIDDEN, "Requests of other origins are rejected")
        if request.method not in {"GET", "HEAD"}:
            return error_response(
                HTTPStatus.METHOD_NOT_ALLOWED, "This server is read-only: use GET or HEAD"
            )
        return None

    def _admit(self, request: Request) -> Response | None:
        """Return the answer to a request without a valid token, or with one in its URL."""
        given = request.query_params.get("token")
        if request.url.path == "/" and given is not None and self._is_token(given):
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
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return True
        if headers.get("sec-fetch-site") in _FOREIGN_SITES:
            return False  # a page of another port on this machine is of the same site
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _is_own_host(self, value: str) -> bool:
        try:
            parts = urlsplit(f"//{value}")
            name, port = parts.hostname, parts.port
        except ValueError:
            return False
        if name is None or port != self._port or "@" in value:
            return False
        return name in _LOOPBACK_NAMES or name == self._host or self._is_reachable_address(name)

    def _is_reachable_address(self, name: str) -> bool:
        """Return whether a name is an address, if the server listens on more than loopback.

        An address cannot be rebound, unlike a name.
        """
        return not is_loopback(self._host) and _is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def error_response(status: HTTPStatus, message: str) -> JSONResponse:
    """Return an error as JSON, with a sentence."""
    return JSONResponse({"error": message}, status)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                if name not in headers:
                    headers[name] = value
        await send(message)

    return send_with_headers
