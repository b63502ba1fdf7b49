"""The network traffic of a run: what its commands reached, and what they were refused."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from weakincentives.cli.units import format_count
from weakincentives.sandbox import NetworkConnection
from weakincentives.sandbox.allowlist import format_rule

_MAX_HOSTS = 5  # named in a line of text


@dataclass(slots=True)
class HostTraffic:
    """The connections to one host and port; those that failed count as made."""

    host: str
    port: int
    connections: int = 0
    refused: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def add(self, connection: NetworkConnection) -> None:
        """Count a connection."""
        self.connections += connection.allowed
        self.refused += not connection.allowed
        self.bytes_sent += connection.bytes_sent
        self.bytes_received += connection.bytes_received


def count_traffic(connections: Iterable[NetworkConnection]) -> list[HostTraffic]:
    """Return the traffic of each host, in the order of the first connections."""
    found: dict[tuple[str, int], HostTraffic] = {}
    for each in connections:
        traffic = found.setdefault((each.host, each.port), HostTraffic(each.host, each.port))
        traffic.add(each)
    return list(found.values())


def describe_traffic(traffic: Sequence[HostTraffic]) -> str:
    """Return one line for the user; empty if there was no traffic."""
    made = [
        f"{describe_host(each.host, each.port)} {format_count(each.connections, 'connection')}"
        for each in traffic
        if each.connections
    ]
    refused = [
        f"{describe_host(each.host, each.port)} {each.refused}" for each in traffic if each.refused
    ]
    parts = [_join(made)] if made else []
    parts += [f"refused: {_join(refused)}"] if refused else []
    return f"Network: {'; '.join(parts)}" if parts else ""


def traffic_facts(traffic: Sequence[HostTraffic]) -> list[dict[str, object]]:
    """Return the traffic as data."""
    return [asdict(each) for each in traffic]


def describe_host(host: str, port: int) -> str:
    """Return a host as a rule would name it."""
    return format_rule(host, port) if host else "an invalid request"


def _join(names: Sequence[str]) -> str:
    more = len(names) - _MAX_HOSTS
    shown = ", ".join(names[:_MAX_HOSTS])
    return f"{shown} and {more} more" if more > 0 else shown
