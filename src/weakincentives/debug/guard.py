"""Who may ask: a token for every request, the right Host and Origin, and reading only.

`weakincentives.loopback` says why. The token is never sent along by another site.
"""

from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weakincentives.loopback import has_bearer_token, is_own_host, is_own_origin, is_token

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


def error_response(status: HTTPStatus, message: str) -> JSONResponse:
    """Return an error as JSON, with a sentence."""
    return JSONResponse({"error": message}, status)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                if name not in headers:
                    headers[name] = value
        await send(message)

    return send_with_headers
