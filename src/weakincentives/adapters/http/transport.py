"""The HTTP transport below the SDKs: what every response may take, and where a request may go.

The SDKs read the body of a failure or a redirect themselves, whole, and a client's time-out
is for each piece that arrives. So the limits are here, below them: no byte is waited for
after the time of a request is over, from the handshake to the end of the body, and no body
takes more memory than it may.
"""

import logging
import time
import traceback
from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote
from weakref import finalize

import httpcore2
import httpx2

from weakincentives.adapters.http.redaction import redact

MAX_BODY = 64 * 1024 * 1024
"""How many bytes a body may have on its way; an answer has a limit of its own too."""
MAX_FAILURE = 128 * 1024
"""How many bytes of a failure are read; the rest is left."""
LOCATION = "wink_location"
"""The extension of a response with the place that it redirects to, or None."""
_MAX_REDIRECTS = 5
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_PIECE = 16 * 1024
# what the client must not interpret: the body is decoded here, and a charset can be a decompressor
_HIDDEN = frozenset(
    {"content-encoding", "content-length", "content-type", "location", "transfer-encoding"}
)
_REDIRECTS = frozenset({301, 302, 307, 308})
_LIBRARIES = frozenset({"anthropic", "httpcore2", "httpx2", "openai"})
_MAX_LOGGED = 8 * 1024
_ends: ContextVar[float | None] = ContextVar("ends", default=None)
_secrets: ContextVar[tuple[str, ...]] = ContextVar("secrets", default=())


class BodyError(httpx2.RequestError):
    """The body of an answer is not read to its end; the message says why."""


@contextmanager
def request_time(seconds: float, secrets: Iterable[str] = ()) -> Generator[float]:
    """Allow the requests of this thread so many seconds, and yield when they are over.

    Args:
        seconds: How long they may take together.
        secrets: What the libraries that make them must not log.
    """
    ends = time.monotonic() + seconds
    token, secrets_token = _ends.set(ends), _secrets.set(tuple(secrets))
    try:
        yield ends
    finally:
        _secrets.reset(secrets_token)
        _ends.reset(token)


class _LogFilter(logging.Filter):
    """Masks the secrets of a request in what is logged of it, as what the server echoes."""

    def filter(self, record: logging.LogRecord) -> bool:
        secrets = _secrets.get()
        if not secrets:
            return True
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        record.msg, record.args = redact(text, secrets, most=_MAX_LOGGED), ()
        record.exc_info = record.exc_text = None
        return True


_log_filter = _LogFilter()


def _mask_logs() -> None:
    """Mask secrets in every logger of the libraries; a filter is not inherited by children."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_log_filter)


def limit_client(client: httpx2.Client, url: httpx2.URL) -> httpx2.Client:
    """Return the client with its transports limited, proxies included.

    Args:
        client: A client that has made no request yet.
        url: Where requests go. What is secret in it is added when they are sent, so that
            neither an exception nor a log of the client has it.
    """
    _mask_logs()
    client.follow_redirects = False
    transport = client._transport = LimitedTransport(client._transport, url)  # pyright: ignore[reportPrivateUsage] # a `transport` of ours would turn off proxies
    mounts = client._mounts = {  # pyright: ignore[reportPrivateUsage]
        pattern: None if each is None else LimitedTransport(each, url)
        for pattern, each in client._mounts.items()  # pyright: ignore[reportPrivateUsage]
    }
    for each in (transport, *mounts.values()):
        if each is not None:
            finalize(client, each.close)  # as the clients that the SDKs make themselves do
    return client


def bare_url(url: httpx2.URL) -> httpx2.URL:
    """Return a URL without user, password, query and fragment."""
    return url.copy_with(userinfo=b"", query=None, fragment=None)


class LimitedTransport(httpx2.BaseTransport):
    """Sends requests by another transport, within the limits of time, size and place."""

    def __init__(self, inner: httpx2.BaseTransport, url: httpx2.URL) -> None:
        """Send by `inner`; `url` has the user and the query that every request gets."""
        self._inner = inner
        self._query = url.query
        userinfo = unquote(url.userinfo.decode("ascii")).encode()
        self._user = b64encode(userinfo).decode("ascii") if userinfo else None
        if isinstance(inner, httpx2.HTTPTransport):
            pool: Any = inner._pool  # pyright: ignore[reportPrivateUsage] # the only place for a backend
            pool._network_backend = _Backend(pool._network_backend)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, follow redirects to the same server, and return the limited response."""
        url = request.url
        response = self._inner.handle_request(self._outgoing(request, url))
        for _ in range(_MAX_REDIRECTS):
            target = _redirect_target(url, response)
            if target is None or _origin(target) != _origin(url):
                break
            response.close()
            url = target
            response = self._inner.handle_request(self._outgoing(request, url))
        return _limited(response)

    def close(self) -> None:
        """Let go of connections."""
        self._inner.close()

    def _outgoing(self, request: httpx2.Request, url: httpx2.URL) -> httpx2.Request:
        headers = httpx2.Headers(request.headers)
        headers["accept-encoding"] = "gzip"
        if self._user is not None:
            headers["authorization"] = f"Basic {self._user}"
        if self._query and not url.query:
            url = url.copy_with(query=self._query)
        return httpx2.Request(
            request.method,
            url,
            headers=headers,
            stream=request.stream,
            extensions=request.extensions,
        )


def _redirect_target(url: httpx2.URL, response: httpx2.Response) -> httpx2.URL | None:
    """Return where a request is to be made again as it is; 303 and the like ask for another."""
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        return url.join(location)
    except (httpx2.InvalidURL, ValueError):
        return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _limited(response: httpx2.Response) -> httpx2.Response:
    """Return a response whose body is decoded, and has an end."""
    headers = [each for each in response.headers.raw if each[0].lower().decode() not in _HIDDEN]
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    # the server's own words for a status are of no use, and in every log
    kept = {name: each for name, each in response.extensions.items() if name != "reason_phrase"}
    stream: httpx2.SyncByteStream
    if response.is_redirect:
        response.close()
        stream = httpx2.ByteStream(b"")
    else:
        stream = _Body(response) if response.is_success else _Failure(response)
    return httpx2.Response(
        response.status_code,
        headers=[*headers, (b"content-type", kind.encode("latin-1", "replace"))],
        stream=stream,
        extensions={**kept, LOCATION: response.headers.get("location")},
    )


class _Arriving(httpx2.SyncByteStream):
    """A body as it arrives, counted: what decodes to nothing must have an end too."""

    def __init__(self, inner: httpx2.SyncByteStream, most: int) -> None:
        self._inner = inner
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise BodyError(f"it is longer than {self._most} bytes")
            yield piece

    def close(self) -> None:
        self._inner.close()


class _Body(httpx2.SyncByteStream):
    """The body of an answer, decoded."""

    def __init__(self, response: httpx2.Response, most: int | None = None) -> None:
        self._response = response
        stream = response.stream
        if isinstance(stream, httpx2.SyncByteStream):
            response.stream = _Arriving(stream, MAX_BODY if most is None else most)

    def __iter__(self) -> Iterator[bytes]:
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise BodyError(f"it is encoded as {encoding[:50]!r}, which was not asked for")
        yield from self._response.iter_bytes()

    def close(self) -> None:
        self._response.close()


class _Failure(_Body):
    """The body of a failure, as much of it as is wanted and comes in time.

    The status says most, so a body that is too long, too slow or damaged is just cut off.
    """

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(response, MAX_FAILURE)

    def __iter__(self) -> Iterator[bytes]:
        left = MAX_FAILURE
        try:
            for piece in super().__iter__():
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
        except httpx2.RequestError:
            return


class _Backend(httpcore2.NetworkBackend):
    """Connections that wait for nothing when the time of a request is over."""

    def __init__(self, inner: httpcore2.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        seconds = _seconds_left(timeout, httpcore2.ConnectTimeout)
        stream = self._inner.connect_tcp(host, port, seconds, local_address, socket_options)
        return _Stream(stream)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        seconds = _seconds_left(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._inner.connect_unix_socket(path, seconds, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    """A connection; each operation has what is left of the time."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _seconds_left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # who reads a little at a time lets each write succeed, so each is a small one
        for start in range(0, len(buffer), _PIECE):
            seconds = _seconds_left(timeout, httpcore2.WriteTimeout)
            self._inner.write(buffer[start : start + _PIECE], seconds)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        seconds = _seconds_left(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, seconds))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _seconds_left(timeout: float | None, error: type[httpcore2.TimeoutException]) -> float | None:
    """Return how long an operation may take, or raise that the time is over."""
    ends = _ends.get()
    if ends is None:
        return timeout
    left = ends - time.monotonic()
    if left <= 0:
        raise error("the time of the request is over")
    return left if timeout is None else min(left, timeout)
