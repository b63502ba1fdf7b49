"""How a run ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from weakincentives.adapters import Message
from weakincentives.cli.run.network import HostTraffic
from weakincentives.cli.run.verification import TestRun
from weakincentives.runtime import TokenUsage


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
