"""One connection of a command to the HTTP proxy: the request, its checks, and the bytes both ways.

A request is parsed strictly: `CONNECT` for a tunnel, or a plain `http://` URL. What can be read in
two ways is rejected (request smuggling): folded lines, lone CR or LF, two lengths. A plain request
is the only one on its connection, and its body has a known length.

The proxy resolves names itself, checks every address, and connects to exactly the address that it
checked, so that a second DNS answer changes nothing (DNS rebinding).
"""

import errno
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address

from weakincentives.sandbox.allowlist import (
    PERMISSION,
    AllowList,
    format_address,
    format_rule,
    is_connected_to_itself,
    is_public,
    split_host,
)
from weakincentives.sandbox.protocol import ConnectionListener, NetworkConnection

MAX_HEAD = 32 * 1024
"""Bytes of a request line with its header fields."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_PLAIN_URL = re.compile(r"http://([^/?#@]+)((?:[/?][^#]*)?)", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
# these concern one connection only, and are not passed on
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"te", b"trailer", b"upgrade", b"host"),
    }
)
_HTTP_PORT = 80
_CHUNK = 64 * 1024
_MAX_DRAIN = 1024 * 1024  # bytes of a rejected request that are read before the connection closes
_DRAIN_TIMEOUT = 2.0  # seconds for that
_END_OF_HEAD = b"\r\n\r\n"
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, as the system resolves it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """How a proxy decides and how long it waits.

    Args:
        allowed: The hosts that it connects to.
        on_connection: Called after each connection, in a thread of the proxy.
        resolve: Returns the addresses of a host and port.
        head_timeout: Seconds for a client to send the head of its request.
        connect_timeout: Seconds to connect to a server.
        idle_timeout: Seconds without a byte in either direction after which it gives up.
        max_open: Connections of a command at the same time; further ones wait.
        max_connections: Connections of a command in all; further ones are refused.
    """

    allowed: AllowList
    on_connection: ConnectionListener | None = None
    resolve: Callable[[str, int], Sequence[str]] = resolve_host
    head_timeout: float = 15.0
    connect_timeout: float = 20.0
    idle_timeout: float = 300.0
    max_open: int = 64
    max_connections: int = 2_000

    @classmethod
    def create(
        cls, hosts: Iterable[str], on_connection: ConnectionListener | None
    ) -> "ProxySettings | None":
        """Return the settings for these rules; None, so no proxy, if there are none.

        Raises:
            ValueError: A rule is invalid.
        """
        allowed = AllowList(hosts)
        return cls(allowed, on_connection) if allowed.rules else None


class ProxyError(Exception):
    """A request that the proxy does not carry out; the message is a sentence for the client."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        """Answer with a status and a sentence."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """What a client asks for.

    Args:
        host: The normalized host to connect to.
        port: Its port.
        head: What to send there first; empty for a tunnel.
        body_length: Bytes of the body that follow; None for a tunnel, which has no end.
    """

    host: str
    port: int
    head: bytes = b""
    body_length: int | None = None

    @property
    def is_tunnel(self) -> bool:
        """Whether the client asked for a tunnel."""
        return self.body_length is None


class ProxyConnection:
    """One connection of a client, until it is closed and recorded."""

    def __init__(
        self,
        client: socket.socket,
        settings: ProxySettings,
        record: Callable[[NetworkConnection], None],
        *,
        is_surplus: bool,
    ) -> None:
        """Serve nothing yet; a surplus connection is refused."""
        self._client = client
        self._server: socket.socket | None = None
        self._settings = settings
        self._record = record
        self._is_surplus = is_surplus
        self._started = time.monotonic()
        self._host, self._port, self._address = "", 0, ""
        self._reason = ""
        self._up = self._down = 0
        self._lock = threading.Lock()
        self._is_finished = False
        self.can_be_aborted: bool = True
        """False while it waits for the resolver."""

    def run(self) -> None:
        """Serve the client to its end."""
        try:
            request, rest = self._read_request()
            self._host, self._port = request.host, request.port
            self._server = self._connect(request)
            self._relay(request, self._server, rest)
        except ProxyError as error:
            self._reason = str(error)
            with suppress(OSError):
                self._respond(error)
        except OSError as error:
            self._reason = error.strerror or str(error)

    def abort(self) -> None:
        """Make `run` return soon; thread-safe."""
        for each in (self._client, self._server):
            if each is not None:
                shut_down(each)

    def finish(self) -> None:
        """Close and record the connection; thread-safe and idempotent."""
        self._client.close()
        if self._server is not None:
            self._server.close()
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
        if self._server is None and not self._reason:
            self._reason = "the command ended before the connection was made"
        self._record(
            NetworkConnection(
                host=self._host,
                port=self._port,
                address=self._address,
                allowed=bool(self._address),
                reason=self._reason,
                bytes_sent=self._up,
                bytes_received=self._down,
                duration_ms=(time.monotonic() - self._started) * 1000,
            )
        )

    def _read_request(self) -> tuple[ProxyRequest, bytes]:
        """Return the request, and what the client has sent after its head."""
        if self._is_surplus:
            count = self._settings.max_connections
            message = f"wink: a command can make at most {count:,} connections"
            raise ProxyError(HTTPStatus.TOO_MANY_REQUESTS, message)
        until = self._started + self._settings.head_timeout
        data = b""
        while (end := data.find(_END_OF_HEAD)) < 0 or end > MAX_HEAD:
            if len(data) > MAX_HEAD:
                message = f"wink: the request has more than {MAX_HEAD:,} bytes of header fields"
                raise ProxyError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
            self._client.settimeout(max(0.001, until - time.monotonic()))
            try:
                more = self._client.recv(_CHUNK)
            except TimeoutError:
                message = "wink: the request did not arrive in time"
                raise ProxyError(HTTPStatus.REQUEST_TIMEOUT, message) from None
            if not more:
                raise ConnectionError("the client closed the connection without a request")
            data += more
        head, _, rest = data.partition(_END_OF_HEAD)
        return parse_request(head), rest

    def _connect(self, request: ProxyRequest) -> socket.socket:
        """Return a socket that is connected to an address that was checked."""
        host, port = request.host, request.port
        until = time.monotonic() + self._settings.connect_timeout
        problem = "no address"
        for address in self._find_addresses(host, port):
            self._address = address
            try:
                return self._connect_to(host, address, port, until)
            except OSError as error:
                problem = error.strerror or str(error)
        target = format_address(host, port)
        raise ProxyError(HTTPStatus.BAD_GATEWAY, f"wink: cannot connect to {target}: {problem}")

    def _find_addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host to which the command may connect.

        Raises:
            ProxyError: It may not, or the host has none.
        """
        allowed = self._settings.allowed
        if not allowed.allows(host, port):
            raise _refusal(f"{format_rule(host, port)} is not allowed", format_rule(host, port))
        self.can_be_aborted = False
        try:
            found = self._settings.resolve(host, port)
        except OSError as error:
            problem = error.strerror or str(error)
            message = f"wink: {host} cannot be resolved: {problem}"
            raise ProxyError(HTTPStatus.BAD_GATEWAY, message) from None
        finally:
            self.can_be_aborted = True
        if self._is_finished:
            raise ConnectionAbortedError
        usable = [each for each in found if allowed.allows_address(host, each, port)]
        if found and not usable:
            raise _address_refusal(host, found[0], port)
        return usable

    def _connect_to(self, host: str, address: str, port: int, until: float) -> socket.socket:
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            server.settimeout(0)
            code = server.connect_ex((address, port))
            if code == errno.EINPROGRESS:
                code = self._wait_for_connection(server, until)
            if code:
                raise OSError(code, os.strerror(code))
            lists = self._settings.allowed.lists_address(host, address, port)
            if is_connected_to_itself(server) and not lists:
                # this machine got the address only after it was checked
                self._address = ""
                raise _address_refusal(host, address, port)
        except BaseException:
            server.close()
            raise
        return server

    def _wait_for_connection(self, server: socket.socket, until: float) -> int:
        """Return the error of a connection attempt; the client may give up meanwhile."""
        poll = select.poll()
        poll.register(server, select.POLLOUT)
        poll.register(self._client, 0)  # hang-ups and errors only
        ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
        if self._client.fileno() in ready:
            return errno.ECANCELED
        if not ready:
            return errno.ETIMEDOUT
        return server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def _relay(self, request: ProxyRequest, server: socket.socket, rest: bytes) -> None:
        """Copy bytes in both directions until both have ended; after a plain request, one."""
        if request.is_tunnel:
            self._client.sendall(_ESTABLISHED)
            up = _Flow(self._client, server, rest)
        else:
            length = request.body_length or 0
            body = rest[:length]
            up = _Flow(self._client, server, request.head + body, limit=length - len(body))
        down = _Flow(server, self._client)
        self._client.settimeout(0)
        try:
            while not (down.is_done and (up.is_done or not request.is_tunnel)):
                if not _step((up, down), self._settings.idle_timeout):
                    self._reason = f"no data for {self._settings.idle_timeout:g} seconds"
                    return
        finally:
            self._up, self._down = up.count, down.count

    def _respond(self, error: ProxyError) -> None:
        """Send the sentence, also as the reason phrase, which is all that many clients show."""
        text = str(error).encode("ascii", "replace")
        head = (
            b"HTTP/1.1 %d %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b\n"
        )
        self._client.settimeout(_DRAIN_TIMEOUT)
        self._client.sendall(head % (error.status, text, len(text) + 1, text))
        self._client.shutdown(socket.SHUT_WR)
        # if unread data were left, the kernel would reset the connection and drop the response
        until, size = time.monotonic() + _DRAIN_TIMEOUT, 0
        while size < _MAX_DRAIN and (left := until - time.monotonic()) > 0:
            self._client.settimeout(left)
            more = self._client.recv(_CHUNK)
            if not more:
                return
            size += len(more)


class _Flow:
    """Bytes on their way from one socket to another."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        pending: bytes = b"",
        *,
        limit: int | None = None,
    ) -> None:
        """Send `pending`, then up to `limit` bytes from the source, by default all."""
        self.source = source
        self.sink = sink
        self.pending = pending
        self.count = 0
        self._left = limit
        self._is_open = limit != 0

    @property
    def is_done(self) -> bool:
        return not self._is_open and not self.pending

    @property
    def wanted(self) -> tuple[socket.socket, int]:
        """The socket that the flow waits for, and the event."""
        return (self.sink, select.POLLOUT) if self.pending else (self.source, select.POLLIN)

    def advance(self) -> None:
        """Read or write once."""
        try:
            if self.pending:
                self._send()
            else:
                self._receive()
        except BlockingIOError:
            pass
        except OSError:
            # one direction is broken; the other may still carry a response
            self.pending, self._is_open = b"", False
            shut_down(self.sink, socket.SHUT_WR)

    def _send(self) -> None:
        sent = self.sink.send(self.pending)
        self.count += sent
        self.pending = self.pending[sent:]

    def _receive(self) -> None:
        self.pending = self.source.recv(_CHUNK if self._left is None else min(_CHUNK, self._left))
        if self._left is not None:
            self._left -= len(self.pending)
        if not self.pending:
            self._is_open = False
            shut_down(self.sink, socket.SHUT_WR)  # half-close: the other direction goes on
        elif self._left == 0:
            self._is_open = False


def _step(flows: Sequence[_Flow], timeout: float) -> bool:
    """Advance the flows that can be; return False if none could for `timeout` seconds."""
    active = [each for each in flows if not each.is_done]
    events: dict[int, int] = {}
    for each in active:
        wanted, event = each.wanted
        events[wanted.fileno()] = events.get(wanted.fileno(), 0) | event
    poll = select.poll()
    for descriptor, event in events.items():
        poll.register(descriptor, event)
    ready = dict(poll.poll(timeout * 1000))
    for each in active:
        wanted, event = each.wanted
        if ready.get(wanted.fileno(), 0) & (event | select.POLLHUP | select.POLLERR):
            each.advance()
    return bool(ready)


def _refusal(fact: str, rule: str) -> ProxyError:
    return ProxyError(HTTPStatus.FORBIDDEN, f"wink: {fact}; {PERMISSION} {rule}")


def _address_refusal(host: str, address: str, port: int) -> ProxyError:
    is_ours = "%" not in address and is_public(ip_address(address))
    what = "an address of this machine" if is_ours else "not a public address"
    fact = f"{host} resolves to {address}, which is {what}, and is not allowed"
    return _refusal(fact, format_rule(address, port))


def shut_down(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a socket down, in both directions by default."""
    with suppress(OSError):  # it has ended already
        connection.shutdown(how)


def parse_request(data: bytes) -> ProxyRequest:
    """Return the request of a head, without the empty line at its end.

    Raises:
        ProxyError: It is not a request that a proxy can carry out.
    """
    first, *lines = data.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise _bad_request("not an HTTP request; this is an HTTP proxy")
    method, target = match[1], match[2].decode("ascii")
    fields = [_parse_field(line) for line in lines]
    if method == b"CONNECT":
        host, port = _split_target(target)
        if port is None:
            raise _bad_request(f"CONNECT needs a host and a port: {target[:100]}")
        return ProxyRequest(host, port)
    url = _PLAIN_URL.fullmatch(target)
    if url is None:
        raise _bad_request(f"a proxy needs a full http:// URL: {target[:100]}")
    host, port = _split_target(url[1])
    head = _build_head(method, url, fields, format_host(host, port))
    return ProxyRequest(host, port or _HTTP_PORT, head, _body_length(fields))


def format_host(host: str, port: int | None) -> str:
    """Return a host for a header or a rule, with the port if it is not a default one."""
    if port is None:
        return f"[{host}]" if ":" in host else host
    return format_address(host, port)


def _split_target(text: str) -> tuple[str, int | None]:
    try:
        return split_host(text)
    except ValueError:
        raise _bad_request(f"not a host name: {text[:100]}") from None


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise _bad_request("a header field is malformed")
    return match[1], match[2]


def _build_head(
    method: bytes, url: re.Match[str], fields: list[tuple[bytes, bytes]], host: str
) -> bytes:
    """Return the head for the server: the path alone, and the last request on its connection."""
    path = url[2] if url[2].startswith("/") else f"/{url[2]}"
    named = {
        each.strip().lower()
        for name, value in fields
        if name.lower() == b"connection"
        for each in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named - {b"content-length"})
    lines = [
        b"%b %b HTTP/1.1" % (method, path.encode("ascii")),
        b"Host: " + host.encode("ascii"),
        *(b"%b: %b" % field for field in fields if field[0].lower() not in dropped),
        b"Connection: close",
    ]
    return b"\r\n".join([*lines, b"", b""])


def _body_length(fields: list[tuple[bytes, bytes]]) -> int:
    if any(name.lower() == b"transfer-encoding" for name, _ in fields):
        message = "wink: send a Content-Length; a chunked body works only with https://"
        raise ProxyError(HTTPStatus.LENGTH_REQUIRED, message)
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise _bad_request("Content-Length must be one number")
    return int(lengths[0]) if lengths else 0


def _bad_request(message: str) -> ProxyError:
    return ProxyError(HTTPStatus.BAD_REQUEST, f"wink: {message}")
