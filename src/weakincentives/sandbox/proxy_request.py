"""A request to an HTTP proxy, parsed strictly: `CONNECT` for a tunnel, or a plain `http://` URL.

What can be read in two ways is rejected (request smuggling): folded lines, lone CR or LF, two
lengths. A plain request is the only one on its connection, and its body has a known length.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus

from weakincentives.sandbox.allowlist import format_address, split_host

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
