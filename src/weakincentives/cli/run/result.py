"""How a run ended: its answer, its network traffic, and what was done with its changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weakincentives.adapters import Message
from weakincentives.cli.run.verification import TestRun
from weakincentives.cli.units import format_count
from weakincentives.posix import display_paths
from weakincentives.runtime import TokenUsage
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
    """Return what a line says to the user; empty if there was no traffic."""
    made = [
        f"{describe_host(each.host, each.port)} {format_count(each.connections, 'connection')}"
        for each in traffic
        if each.connections
    ]
    refused = [
        f"{describe_host(each.host, each.port)} {each.refused}" for each in traffic if each.refused
    ]
    parts = [display_paths(made, _MAX_HOSTS)] if made else []
    parts += [f"refused: {display_paths(refused, _MAX_HOSTS)}"] if refused else []
    return f"network: {'; '.join(parts)}" if parts else ""


def traffic_facts(traffic: Sequence[HostTraffic]) -> list[dict[str, object]]:
    """Return the traffic as data."""
    return [asdict(each) for each in traffic]


def describe_host(host: str, port: int) -> str:
    """Return a host as a rule would name it."""
    return format_rule(host, port) if host else "an invalid request"


Outcome: TypeAlias = Literal[
    "nothing",
    "applied",
    "applied-partly",
    "committed",
    "committed-partly",
    "branched",
    "branched-partly",
    "patched",
    "patched-partly",
    "discarded",
    "kept",
    "reply",
    "interrupted",
    "conflict",
    "failed",
]
EXIT_DONE, EXIT_FAILED, EXIT_KEPT, EXIT_CONFLICT = 0, 1, 3, 4
_EXIT_CODES: dict[str, int] = {
    "kept": EXIT_KEPT,
    "partly": EXIT_KEPT,
    "interrupted": EXIT_KEPT,
    "conflict": EXIT_CONFLICT,
    "failed": EXIT_FAILED,
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was done with the changes, and the facts about them as data."""

    outcome: Outcome
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    reply: str | None = None
    """What the user told the model instead of deciding."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return _EXIT_CODES.get(self.outcome.rpartition("-")[2], EXIT_DONE)


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a run ended; `error` says why there is no answer."""

    status: Literal["done", "failed", "cancelled"]
    answer: str
    error: str | None
    advice: str | None
    signal: int | None
    steps: int
    tool_calls: int
    usage: TokenUsage
    seconds: float
    session_id: str
    cost: float | None = None
    """In US dollars; None if a price is unknown."""
    messages: tuple[Message, ...] = ()
    """The conversation so far, without the system message."""
    digest_tokens: int | None = None
    """The size of the digest in the prompt, if it has one."""
    tests: tuple[TestRun, ...] = ()
    """The runs of the user's test command, in order."""
    traffic: tuple[HostTraffic, ...] = ()
    stopped: tuple[str, ...] = ()
    """Commands that still ran in the background at the end, and were stopped."""
    dump: Path | None = None
    dump_error: str | None = None
    left_out: tuple[str, ...] = ()
    """Derived files and directories that are neither dumped nor recorded."""
    timeline: Path | None = None
    timeline_error: str | None = None
    """Why the timeline is missing or incomplete."""
    last_step: int | None = None
    """The last step in the timeline."""
    displaced: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """The paths that the rollback of a command displaced, by the step of its call."""
    saved: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """The paths that the user saved and a call replaced, by the step of the call."""
