"""Limited HTTP transport below the SDKs: timeout, body size, redirects, masked logs.

The SDKs read the whole body of an error or a redirect themselves, and a client's timeout
applies to each chunk. So the limits are enforced below them: a request waits for no byte after
its time is up, from the handshake to the end of the body, and every body has a maximum size.
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

from weakincentives.adapters.http.lenient import MAX_ERROR_BODY, MAX_STREAM
from weakincentives.redaction import redact

LOCATION = "wink_location"
"""Response extension with the target of a redirect, or None."""
_MAX_REDIRECTS = 5
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate"})
_WRITE_SIZE = 16 * 1024
# hidden from the client: the body is decoded here, and a charset can be a decompressor
_HIDDEN = frozenset(
    {"content-encoding", "content-length", "content-type", "location", "transfer-encoding"}
)
_REPEATABLE_REDIRECTS = frozenset({301, 302, 307, 308})
_LIBRARIES = frozenset({"anthropic", "httpcore2", "httpx2", "openai"})
_MAX_LOGGED = 8 * 1024
_ends: ContextVar[float | None] = ContextVar("ends", default=None)
_secrets: ContextVar[tuple[str, ...]] = ContextVar("secrets", default=())


class BodyError(httpx2.RequestError):
    """A response body was rejected before its end; the message says why."""


@contextmanager
def request_time(seconds: float, secrets: Iterable[str] = ()) -> Generator[float]:
    """Limit the time of this thread's requests; yield the end by `time.monotonic`.

    Args:
        seconds: How long they may take together.
        secrets: What the HTTP libraries must not log.
    """
    ends = time.monotonic() + seconds
    token, secrets_token = _ends.set(ends), _secrets.set(tuple(secrets))
    try:
        yield ends
    finally:
        _secrets.reset(secrets_token)
        _ends.reset(token)


class _LogFilter(logging.Filter):
    """Masks the secrets of a request in log records, also where the server echoes them."""

    def filter(self, record: logging.LogRecord) -> bool:
        secrets = _secrets.get()
        if not secrets:
            return True
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info))
        record.msg, record.args = redact(text, secrets, max_length=_MAX_LOGGED), ()
        record.exc_info = record.exc_text = None
        return True


_log_filter = _LogFilter()


def _mask_logs() -> None:
    """Add the filter to every logger of the libraries; child loggers do not inherit it."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LIBRARIES:
            logging.getLogger(name).addFilter(_log_filter)


def limit_client(client: httpx2.Client, url: httpx2.URL) -> httpx2.Client:
    """Return the client with limited transports, proxies included.

    Args:
        client: A client that has sent no request yet.
        url: Where requests go. Its secrets are added when a request is sent, so that no
            exception or log of the client contains them.
    """
    _mask_logs()
    client.follow_redirects = False
    # a `transport` argument would turn off proxies, so the private attributes are replaced
    transport = client._transport = LimitedTransport(client._transport, url)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001  see above
    mounts = client._mounts = {  # pyright: ignore[reportPrivateUsage] # noqa: SLF001  see above
        pattern: None if each is None else LimitedTransport(each, url)
        for pattern, each in client._mounts.items()  # pyright: ignore[reportPrivateUsage] # noqa: SLF001  see above
    }
    for each in (transport, *mounts.values()):
        if each is not None:
            finalize(client, each.close)  # as the SDKs do for the clients that they create
    return client


def bare_url(url: httpx2.URL) -> httpx2.URL:
    """Return a URL without user, password, query and fragment."""
    return url.copy_with(userinfo=b"", query=None, fragment=None)


class LimitedTransport(httpx2.BaseTransport):
    """Wraps a transport: limits time and size, and follows redirects within one server only."""

    def __init__(self, inner: httpx2.BaseTransport, url: httpx2.URL) -> None:
        """Wrap `inner`; every request gets the user and query of `url`."""
        self._inner = inner
        self._query = url.query
        userinfo = unquote(url.userinfo.decode("ascii")).encode()
        self._user = b64encode(userinfo).decode("ascii") if userinfo else None
        if isinstance(inner, httpx2.HTTPTransport):
            # the only place to set a network backend
            pool: Any = inner._pool  # pyright: ignore[reportPrivateUsage] # noqa: SLF001  see above
            pool._network_backend = _Backend(pool._network_backend)  # noqa: SLF001  see above

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, follow redirects within the server, and return a limited response."""
        url = request.url
        response = self._inner.handle_request(self._build_request(request, url))
        for _ in range(_MAX_REDIRECTS):
            target = _redirect_target(url, response)
            if target is None or _origin(target) != _origin(url):
                break
            response.close()
            url = target
            response = self._inner.handle_request(self._build_request(request, url))
        return _limit_response(response)

    def close(self) -> None:
        """Close connections."""
        self._inner.close()

    def _build_request(self, request: httpx2.Request, url: httpx2.URL) -> httpx2.Request:
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
    """Return where to repeat the same request; 303 and the like ask for a different one."""
    location = response.headers.get("location")
    if response.status_code not in _REPEATABLE_REDIRECTS or location is None:
        return None
    try:
        return url.join(location)
    except (httpx2.InvalidURL, ValueError):
        return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _limit_response(response: httpx2.Response) -> httpx2.Response:
    """Return the response with a decoded body of limited size."""
    headers = [each for each in response.headers.raw if each[0].lower().decode() not in _HIDDEN]
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    # the server's reason phrase is of no use, and would be in every log
    kept = {name: each for name, each in response.extensions.items() if name != "reason_phrase"}
    stream: httpx2.SyncByteStream
    if response.is_redirect:
        response.close()
        stream = httpx2.ByteStream(b"")
    else:
        body, limit = (_Body, MAX_STREAM) if response.is_success else (_ErrorBody, MAX_ERROR_BODY)
        stream = body(response, limit)
    return httpx2.Response(
        response.status_code,
        headers=[*headers, (b"content-type", kind.encode("latin-1", "replace"))],
        stream=stream,
        extensions={**kept, LOCATION: response.headers.get("location")},
    )


class _CountedStream(httpx2.SyncByteStream):
    """Limits the bytes on the wire: a stream that decodes to nothing must end too."""

    def __init__(self, inner: httpx2.SyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        left = self._max_bytes
        for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise BodyError(f"it is longer than {self._max_bytes} bytes")
            yield piece

    def close(self) -> None:
        self._inner.close()


class _Body(httpx2.SyncByteStream):
    """The decoded body of a successful response."""

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes
        stream = response.stream
        if isinstance(stream, httpx2.SyncByteStream):
            response.stream = _CountedStream(stream, max_bytes)

    def __iter__(self) -> Iterator[bytes]:
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise BodyError(f"it has the encoding {encoding[:50]!r}, which was not requested")
        yield from self._response.iter_bytes()

    def close(self) -> None:
        self._response.close()


class _ErrorBody(_Body):
    """The beginning of an error response's body.

    The status says most, so a body that is too long, too slow or damaged is truncated.
    """

    def __iter__(self) -> Iterator[bytes]:
        left = self._max_bytes
        try:
            for piece in super().__iter__():
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
        except httpx2.RequestError:
            return


class _Backend(httpcore2.NetworkBackend):
    """A network backend whose operations end when the request times out."""

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
        seconds = _cap_timeout(timeout, httpcore2.ConnectTimeout)
        stream = self._inner.connect_tcp(host, port, seconds, local_address, socket_options)
        return _TimedStream(stream)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _TimedStream(httpcore2.NetworkStream):
    """A connection; each operation has the remaining time as its timeout."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _cap_timeout(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # in small parts: a server that reads slowly would let one large write outlast the time
        for start in range(0, len(buffer), _WRITE_SIZE):
            seconds = _cap_timeout(timeout, httpcore2.WriteTimeout)
            self._inner.write(buffer[start : start + _WRITE_SIZE], seconds)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        seconds = _cap_timeout(timeout, httpcore2.ConnectTimeout)
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, seconds))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _cap_timeout(timeout: float | None, error: type[httpcore2.TimeoutException]) -> float | None:
    """Return the timeout of one operation; raise `error` if the time is up."""
    ends = _ends.get()
    if ends is None:
        return timeout
    left = ends - time.monotonic()
    if left <= 0:
        raise error("the request timed out")
    return left if timeout is None else min(left, timeout)
