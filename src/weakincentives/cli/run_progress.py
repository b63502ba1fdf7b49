"""How far a run has come: steps, tools, files, tokens, time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.quantities import brief_time, clock, counted
from weakincentives.cli.terminal import one_line, plain
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
)
from weakincentives.filesystem.paths import shown
from weakincentives.runtime import ToolInvoked

CHANGES = (FileWritten, FileDeleted, DirectoryCreated, LinkCreated, EntryMoved)
"""The events that say that something was touched."""

_MAX_PATHS = 3
_ARGUMENTS = ("command", "cmd", "pattern", "query")


@dataclass(slots=True)
class Progress:
    """What has happened so far; told of every event, in the thread of the run."""

    max_tokens: int | None = None
    seconds: float | None = None
    """How long the run may take; None is no limit."""
    now: Callable[[], float] = time.monotonic
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    characters: int = 0
    """What has arrived of the answer that is being written."""
    activity: str = "asking the model"
    touched: dict[str, None] = field(default_factory=dict[str, None])
    started: float = field(init=False)

    def __post_init__(self) -> None:
        """Note when it began."""
        self.started = self.now()

    def heard(self, piece: str) -> None:
        """Take note of text that arrives."""
        self.characters += len(piece)
        self.activity = f"the model writes, {self.characters:,} characters"

    def answered(self, event: ModelResponded) -> None:
        """Take note of an answer."""
        self.steps += 1
        self.characters = 0
        self.tokens += event.usage.total_tokens
        names = ", ".join(dict.fromkeys(event.tool_calls))
        self.activity = f"running {plain(names)}" if names else "done"

    def retried(self, _: RequestRetried) -> None:
        """Take note that an answer is waited for anew; what had arrived of it is void."""
        self.characters = 0
        self.activity = "waiting to ask again"

    def called(self, _: ToolInvoked) -> None:
        """Take note of a tool call."""
        self.calls += 1
        self.activity = "asking the model"

    def changed(self, event: object) -> None:
        """Take note of a file that was touched."""
        if isinstance(event, EntryMoved):
            self.touched[event.source] = None
        path = getattr(event, "path", None)
        if isinstance(path, str):
            self.touched[path] = None

    def elapsed(self) -> float:
        """Return how many seconds it took so far."""
        return self.now() - self.started

    def line(self) -> str:
        """Return all of it in one line."""
        tokens = f"{self.tokens:,}"
        if self.max_tokens is not None:
            tokens += f" of {self.max_tokens:,}"
        took = self.elapsed()
        time = clock(took) if self.seconds is None else f"{clock(self.seconds - took)} left"
        touched = counted(len(self.touched), "file touched", "files touched")
        return f"{time} · step {max(1, self.steps)} · {self.activity} · {touched} · {tokens} tokens"


def target_of(event: ToolInvoked, width: int) -> str:
    """Return what a call was about: what it ran or looked for, and its files."""
    found = [_argument(event.params)]
    if event.paths and event.paths != (".",):
        more = len(event.paths) - _MAX_PATHS
        names = [shown(path) for path in event.paths[:_MAX_PATHS]]
        found.append(", ".join(names) + (f" and {more} more" if more > 0 else ""))
    return one_line(" · ".join(filter(None, found)) or ".", width)


def _argument(params: Mapping[str, Any]) -> str:
    """Return the command or the pattern among the arguments of a call."""
    for name in _ARGUMENTS:
        value: object = params.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple):
            return " ".join(map(str, cast("Sequence[object]", value)))
    return ""


def said_by(event: ToolInvoked) -> str:
    """Return what came of a call in words; one that was stopped has only its error."""
    return event.result_message or event.error or ""


def took(event: ToolInvoked) -> str:
    """Return how long a call took."""
    return brief_time(event.duration_ms)
