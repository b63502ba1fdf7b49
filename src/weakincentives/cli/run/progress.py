"""Progress of a run: its counters, and what a tool call was about."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.terminal import escape_controls, shorten
from weakincentives.cli.units import format_clock, format_count
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.posix import display_path
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.timeline import call_subject

CHANGES = (FileWritten, FileDeleted, DirectoryCreated, LinkCreated, EntryMoved)
"""The events of a changed path."""
_MAX_PATHS = 3


@dataclass(slots=True)
class Progress:
    """Counters of a run, updated by its events in the thread of the run."""

    max_tokens: int | None = None
    seconds: float | None = None
    """Time limit of the run; None means unlimited."""
    now: Callable[[], float] = time.monotonic
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    characters: int = 0
    """Length of the streamed part of the current response."""
    activity: str = "asking the model"
    touched: dict[str, None] = field(default_factory=dict[str, None])
    started: float = field(init=False)

    def __post_init__(self) -> None:
        """Record the start time."""
        self.started = self.now()

    def on_text(self, piece: str) -> None:
        """Count streamed text."""
        self.characters += len(piece)
        self.activity = f"receiving, {self.characters:,} characters"

    def on_response(self, event: ModelResponded) -> None:
        """Count a response of the model."""
        self.steps += 1
        self.characters = 0
        self.tokens += event.usage.total_tokens
        names = ", ".join(dict.fromkeys(event.tool_calls))
        self.activity = f"running {escape_controls(names)}" if names else "done"

    def on_retry(self, _: RequestRetried) -> None:
        """Reset the streamed text: the request is sent again."""
        self.characters = 0
        self.activity = "waiting to retry"

    def on_tool_call(self, _: ToolInvoked) -> None:
        """Count a tool call."""
        self.calls += 1
        self.activity = "asking the model"

    def on_change(self, event: object) -> None:
        """Count a changed path."""
        source = event.source if isinstance(event, EntryMoved) else None
        for path in (source, getattr(event, "path", None)):
            if isinstance(path, str) and not is_tool_output(path):
                self.touched[path] = None

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.now() - self.started

    def line(self) -> str:
        """Return the progress as one line."""
        tokens = f"{self.tokens:,}"
        if self.max_tokens is not None:
            tokens += f" of {self.max_tokens:,}"
        elapsed = self.elapsed()
        if self.seconds is None:
            time = format_clock(elapsed)
        else:
            time = f"{format_clock(self.seconds - elapsed)} left"
        touched = format_count(len(self.touched), "file changed", "files changed")
        return f"{time} · step {max(1, self.steps)} · {self.activity} · {touched} · {tokens} tokens"


def describe_target(event: ToolInvoked, width: int) -> str:
    """Return what a call was about: its command, pattern or code, and its files."""
    parts = [call_subject(event.params)]
    if event.paths and event.paths != (".",):
        more = len(event.paths) - _MAX_PATHS
        names = [display_path(path) for path in event.paths[:_MAX_PATHS]]
        parts.append(", ".join(names) + (f" and {more} more" if more > 0 else ""))
    return shorten(" · ".join(filter(None, parts)) or ".", width)


def result_text(event: ToolInvoked) -> str:
    """Return the result of a call as text; an aborted call has only an error."""
    return event.result_message or event.error or ""
