"""Who may talk to a server on this machine: a token, the right Host, and no foreign Origin.

A web page that the user visits can send requests to a server on this machine too, and with a name
that resolves to 127.0.0.1 it is even of the same origin (DNS rebinding). So the Host header must
be the server's own, a foreign Origin is rejected, and every request needs a token.
"""

import hmac
import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from weakincentives.errors import WinkError

LOOPBACK = "127.0.0.1"
"""The address that only this machine reaches."""
_NAMES = frozenset({"localhost", LOOPBACK, "::1"})
_BACKLOG = 128


class RemoteHostError(WinkError, ValueError):
    """The server would listen on an address that other machines reach."""


def listen(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Return a socket that is bound to a port; 0 is a free one.

    Raises:
        RemoteHostError: Other machines reach the host, and `allow_remote` is not set.
        OSError: The port is in use, or the host is not this machine.
    """
    if not allow_remote and not is_loopback(host):
        raise RemoteHostError(
            f"Other machines could connect to host {host!r};"
            " add --allow-remote (allow_remote=True) if you want that"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def create_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


def is_token(given: str, token: str) -> bool:
    """Return whether a token is the right one, in a time that does not depend on its characters."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def has_bearer_token(authorization: str, token: str) -> bool:
    """Return whether an Authorization header has the token."""
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and is_token(given.strip(), token)


def is_own_host(value: str, *, host: str, port: int) -> bool:
    """Return whether a Host header is the address of a server that listens on `host` and `port`.

    A server that other machines reach is called by any address: an address cannot be rebound,
    unlike a name.
    """
    try:
        parts = urlsplit(f"//{value}")
        name, given_port = parts.hostname, parts.port
    except ValueError:
        return False
    if name is None or given_port != port or "@" in value:
        return False
    return name in _NAMES or name == host or (not is_loopback(host) and _is_address(name))


def is_own_origin(origin: str | None, host: str) -> bool:
    """Return whether a request with a checked Host header comes from a program or our own page."""
    return origin is None or origin == f"http://{host}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
