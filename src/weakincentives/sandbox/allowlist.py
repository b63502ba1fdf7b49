"""Network allow-list: which hosts and addresses a command may connect to.

A rule is a host name (`example.com`), all its subdomains (`*.example.com`) or an IP address,
with an optional port (`example.com:8443`); without one it stands for the ports 80 and 443. A name
that is allowed may still resolve to an address of this machine or of a private network, by
mistake or on purpose. Such addresses are allowed only if they are listed themselves.
"""

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

DEFAULT_PORTS = frozenset({80, 443})
"""The ports of a rule that names none."""

LOCALHOST = "localhost"
"""The one name that stands for loopback addresses."""

PERMISSION = "the user can allow it with --allow-host"
"""What a refusal tells the model, before the rule that would allow the host."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# forms such as 127.1 and 0x7f000001, which some resolvers take for addresses
_NUMERIC_ENDING = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_MAX_NAME = 253
_NAT64 = IPv6Network("64:ff9b::/96")  # what IPv4 hosts resolve to in a network without IPv4
_SPECIAL = (
    IPv4Network("192.0.0.0/24"),  # of protocols; 192.0.0.192 is the metadata service of a cloud
    IPv4Network("168.63.129.16/32"),  # the same of another one, for all its machines
    IPv6Network("64:ff9b:1::/48"),  # translation to private addresses
)
_ANY_PORT = 9


@dataclass(frozen=True, slots=True)
class HostRule:
    """One rule of an allow-list.

    Args:
        host: A normalized host name or IP address.
        port: The only port, or None for the default ports.
        is_wildcard: Whether the rule stands for the subdomains of the host, not the host itself.
    """

    host: str
    port: int | None = None
    is_wildcard: bool = False

    def __str__(self) -> str:
        """Return the rule as it is written."""
        name = f"*.{self.host}" if self.is_wildcard else self.host
        return name if self.port is None else format_address(name, self.port)

    def matches(self, host: str, port: int) -> bool:
        """Return whether the rule allows a normalized host and a port."""
        if port not in (DEFAULT_PORTS if self.port is None else {self.port}):
            return False
        return host.endswith(f".{self.host}") if self.is_wildcard else host == self.host


class AllowList:
    """The hosts that a command may connect to."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Allow what the rules name.

        Raises:
            TypeError: The rules are a single string.
            ValueError: A rule is invalid.
        """
        if isinstance(hosts, str):
            raise TypeError(f"Hosts must be a sequence of strings, not a single string: {hosts!r}")
        self.rules: tuple[HostRule, ...] = tuple(dict.fromkeys(map(parse_rule, hosts)))

    def allows(self, host: str, port: int) -> bool:
        """Return whether a normalized host may be asked for."""
        return any(rule.matches(host, port) for rule in self.rules)

    def allows_address(self, host: str, address: str, port: int) -> bool:
        """Return whether an allowed host may be reached at the address that it resolved to."""
        if "%" in address:
            return False  # the zone of a link-local address
        if self.lists_address(host, address, port):
            return True
        found = ip_address(address)
        return is_public(found) and not any(map(is_own_address, _destinations(found)))

    def lists_address(self, host: str, address: str, port: int) -> bool:
        """Return whether a rule names the address itself, whatever it belongs to."""
        found = _unwrap(ip_address(address))
        return self.allows(str(found), port) or (host == LOCALHOST and found.is_loopback)


def parse_rule(text: str) -> HostRule:
    """Return the rule that a person wrote.

    Raises:
        ValueError: It is not a host name or IP address with an optional port.
    """
    if "/" in text:
        raise ValueError(f"Write the host alone, such as example.com, not a URL: {text!r}")
    rest = text.strip().removeprefix("*.")
    is_wildcard = rest != text.strip()
    try:
        host, port = split_host(rest)
    except ValueError as error:
        raise ValueError(
            f"{error}; write a host such as example.com, *.example.com or example.com:8443"
        ) from error
    if is_wildcard and _parse_address(host) is not None:
        raise ValueError(f"An IP address has no subdomains: {text!r}")
    return HostRule(host, port, is_wildcard)


def split_host(text: str) -> tuple[str, int | None]:
    """Return the normalized host and the port of `host`, `host:port` or `[address]:port`.

    Raises:
        ValueError: The rule is invalid.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not isinstance(_parse_address(host), IPv6Address):
            raise ValueError(f"Not an IPv6 address in brackets: {text!r}")
    elif text.count(":") > 1:
        host, rest = text, ""
    else:
        host, colon, port = text.partition(":")
        rest = colon + port
    if not rest:
        return normalize_host(host), None
    digits = rest.removeprefix(":")
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 0 < int(digits) < 2**16:
        raise ValueError(f"Not a port from 1 to 65535: {text!r}")
    return normalize_host(host), int(digits)


def normalize_host(text: str) -> str:
    """Return a host name or IP address in the one form in which it is compared.

    Names are lower case, in ASCII (IDNA) and without a final dot.

    Raises:
        ValueError: It is neither a host name nor an IP address.
    """
    address = _parse_address(text)
    if address is not None:
        return str(_unwrap(address))
    name = _encode_name(text.lower().removesuffix("."))
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name) or _NUMERIC_ENDING.fullmatch(name):
        raise ValueError(f"Not a host name: {text!r}")
    return name


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_rule(host: str, port: int) -> str:
    """Return the rule that allows a host and a port."""
    return host if port in DEFAULT_PORTS else format_address(host, port)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is on the public internet, not local, private or reserved.

    The metadata service of a cloud can have an address that is public by its number; it is not.
    """
    return all(
        each.is_global
        and not (each.is_multicast or each.is_reserved or each.is_unspecified or each.is_loopback)
        and not (isinstance(each, IPv6Address) and each.is_site_local)
        and not any(each in network for network in _SPECIAL if network.version == each.version)
        for each in _destinations(address)
    )


def is_own_address(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an interface of this machine has an address, which the kernel knows best.

    No packet is sent: the address from which this machine would answer itself is its own.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _ANY_PORT))
            return is_connected_to_itself(probe)
    except OSError:
        return False  # there is no way to it


def is_connected_to_itself(connection: socket.socket) -> bool:
    """Return whether a connected socket leads to the address that it has itself."""
    return connection.getpeername()[0] == connection.getsockname()[0]


def _encode_name(name: str) -> str:
    if name.isascii():
        return name
    try:
        encoded = name.encode("idna")
        if encoded.decode("idna") == name:
            return encoded.decode("ascii")
    except UnicodeError:
        pass
    # standards differ in what some names mean, such as those with a German sharp s
    raise ValueError(f"Write the host name in ASCII, as xn--...: {name!r}")


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    if "%" in text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None


def _destinations(
    address: IPv4Address | IPv6Address,
) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses that a connection to this one may arrive at, through any translation."""
    found = _unwrap(address)
    if isinstance(found, IPv6Address):
        if found in _NAT64:
            yield IPv4Address(found.packed[-4:])
            return
        tunnels = (found.sixtofour, *(found.teredo or ()))
        yield from (each for each in tunnels if each is not None)
    yield found


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv4-mapped IPv6 address connects to."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
