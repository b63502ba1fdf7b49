"""How a run is shown: its progress, and the views that people and programs read."""

import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import IO, Any

import click
from rich.cells import cell_len
from rich.text import Text

from weakincentives.adapters import ContextCompacted, ModelResponded, RequestRetried, TokenPrice
from weakincentives.characters import strip_byte_escapes
from weakincentives.cli.activity import format_wait
from weakincentives.cli.terminal import cut, escape_controls, shorten
from weakincentives.cli.units import (
    format_clock,
    format_cost,
    format_count,
    format_short_count,
    format_tokens,
    pick,
)
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
)
from weakincentives.filesystem.reproducible import is_byproduct
from weakincentives.posix import display_paths
from weakincentives.runtime import TokenUsage, ToolInvoked, ToolStarted
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import call_subject
from weakincentives.sandbox import NetworkConnection
from weakincentives.sandbox.allowlist import PERMISSION

CHANGES = (FileWritten, FileDeleted, DirectoryCreated, LinkCreated, EntryMoved)
"""The events of a changed path."""
_WAITING = "waiting for the model"
_MAX_PATHS = 3
_MAX_SUBJECT = 40  # cells of a command in the status line
_MAX_OUTPUT = 4096  # bytes
_NO_NETWORK = re.compile(
    r"could not resolve|temporary failure in name resolution|name or service not known"
    r"|network is unreachable|EAI_AGAIN|failed to lookup address|unable to resolve host",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Progress:
    """Counters of a run, updated by its events in the thread of the run."""

    max_tokens: int | None = None
    seconds: float | None = None
    """Time limit of the run; None means unlimited."""
    price: TokenPrice | None = None
    is_offline: bool = False
    """Whether commands have no network, which the user could change."""
    now: Callable[[], float] = time.monotonic
    steps: int = 0
    calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    cost: float | None = 0.0
    """The cost so far in US dollars; None if a price is unknown."""
    characters: int = 0
    """Length of the streamed part of the current response."""
    activity: str = _WAITING
    touched: dict[str, None] = field(default_factory=dict[str, None])
    started: float = field(init=False)
    activity_started: float = field(init=False)
    _running: dict[str, str] = field(default_factory=dict[str, str])
    _output: bytes = b""

    def __post_init__(self) -> None:
        """Start."""
        self.start()

    def start(self) -> None:
        """Count the time from now on."""
        self.started = self.activity_started = self.now()

    def on_text(self, piece: str) -> None:
        """Count streamed text."""
        self.characters += len(piece)
        if not self.activity.startswith("receiving"):
            self._begin("")
        self.activity = f"receiving, {self.characters:,} characters"

    def on_response(self, event: ModelResponded) -> None:
        """Count a response of the model."""
        self.steps += 1
        self.characters = 0
        self._count(event.usage)
        names = ", ".join(dict.fromkeys(event.tool_calls))
        self._begin(f"running {escape_controls(names)}" if names else "done")

    def on_compaction(self, event: ContextCompacted) -> None:
        """Count the request for a summary, if there was one."""
        if event.usage.total_tokens:
            self._count(event.usage)

    def _count(self, usage: TokenUsage) -> None:
        self.usage += usage
        cost = self.cost_of(usage)
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def on_retry(self, _: RequestRetried) -> None:
        """Reset the streamed text: the request is sent again."""
        self.characters = 0
        self._begin("waiting to retry")

    def on_tool_start(self, event: ToolStarted) -> None:
        """Name the tool call that is running."""
        subject = call_subject(event.params)
        text = shorten(subject, _MAX_SUBJECT) or escape_controls(event.tool)
        self._running[event.call_id] = text
        self._output = b""
        self._begin(f"running: {', '.join(self._running.values())}")

    def on_tool_call(self, event: ToolInvoked) -> None:
        """Count a tool call."""
        self.calls += 1
        self._running.pop(event.call_id, None)
        self._output = b""
        if self._running:
            self.activity = f"running: {', '.join(self._running.values())}"
        else:
            self._begin(_WAITING)

    def on_activity(self, activity: str) -> None:
        """Name what is done besides requests and tool calls."""
        self._output = b""
        self._begin(shorten(activity, _MAX_SUBJECT + 20))

    def on_output(self, stream: str, data: bytes) -> None:
        """Remember the end of what the running command has printed; any thread may call this."""
        del stream  # people see both
        self._output = (self._output + data[-_MAX_OUTPUT:])[-_MAX_OUTPUT:]

    def on_change(self, event: object) -> None:
        """Count a changed path."""
        source = event.source if isinstance(event, EntryMoved) else None
        for path in (source, getattr(event, "path", None)):
            if isinstance(path, str) and not is_byproduct(path):
                self.touched[path] = None

    def cost_of(self, usage: TokenUsage) -> float | None:
        """Return the cost of one request in US dollars, or None if its price is unknown."""
        return None if self.price is None else self.price.cost(usage)

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.now() - self.started

    def wait(self) -> float:
        """Return the seconds since the current activity began."""
        return self.now() - self.activity_started

    def describe_activity(self) -> str:
        """Return what is being done, and for how long."""
        return f"{self.activity}{format_wait(self.wait())}"

    def last_output(self) -> str:
        """Return the last line that the running command has printed."""
        output = strip_byte_escapes(self._output).replace(b"\r", b"\n")
        lines = output.decode("utf-8", "replace").split("\n")
        return escape_controls(next((each.strip() for each in lines[::-1] if each.strip()), ""))

    def line(self, width: int = 1000) -> str:
        """Return the progress as one line; where it is too long, the last parts are left out."""
        parts = list(self._parts())
        while len(parts) > 1 and cell_len(" · ".join(parts)) > width:
            parts.pop()
        return cut(" · ".join(parts), width)

    def _parts(self) -> Iterator[str]:
        elapsed = self.elapsed()
        if self.seconds is None:
            yield format_clock(elapsed)
        else:
            yield f"{format_clock(self.seconds - elapsed)} left"
        yield f"step {max(1, self.steps)}"
        yield self.describe_activity()
        yield format_tokens(self.usage, format_short_count, self.max_tokens)
        if self.cost:
            yield format_cost(self.cost)
        if self.touched:
            yield format_count(len(self.touched), "file changed", "files changed")

    def _begin(self, activity: str) -> None:
        self.activity = activity
        self.activity_started = self.now()


def describe_target(event: ToolInvoked, width: int) -> str:
    """Return what a call was about: its command, pattern or code, and its files."""
    parts = [call_subject(event.params)]
    if event.paths != (".",) or not parts[0]:
        paths = [path for path in event.paths if not is_byproduct(path)]
        parts.append(display_paths(paths, _MAX_PATHS))
    return shorten(" · ".join(filter(None, parts)), width)


def lacks_network(event: ToolInvoked) -> bool:
    """Return whether the command of a call seems to have failed because it reached no host."""
    has_failed = event.command is not None and event.command.failed
    return has_failed and _NO_NETWORK.search(result_text(event)) is not None


def describe_refusal(connection: NetworkConnection) -> str:
    """Return for the user why a connection was refused or has failed; empty if it was not."""
    reason = connection.reason.removeprefix("wink: ")
    return reason.replace(PERMISSION, "allow it with --allow-host")


def result_text(event: ToolInvoked) -> str:
    """Return the result of a call as text; an aborted call has only an error."""
    return event.result_message or event.error or ""


class View:
    """Shows a run: `observe` during it, `emit` before and after. This one shows nothing."""

    _progress: Progress | None = None

    def emit(self, event: str, facts: Mapping[str, object], text: str | Text | None = None) -> None:
        """Report an event of the whole run as data, and as text if there is any."""

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show what is being done until the context ends; `describe` is called again and again."""
        del describe  # nobody looks
        return nullcontext()

    @contextmanager
    def observe(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show the events of a session until the context ends; each updates the progress first."""
        self._progress = progress
        listeners: list[tuple[type[Any], Callable[[Any], object]]] = [
            *((kind, progress.on_change) for kind in CHANGES),
            (ModelResponded, progress.on_response),
            (ToolStarted, progress.on_tool_start),
            (ToolInvoked, progress.on_tool_call),
            (RequestRetried, progress.on_retry),
            (ContextCompacted, progress.on_compaction),
            (ModelResponded, self._on_response),
            (ToolInvoked, self._on_tool_call),
            (RequestRetried, self._on_retry),
            (ContextCompacted, self._on_compaction),
            (NetworkConnection, self._on_connection),
        ]
        with ExitStack() as stack:
            for kind, listener in listeners:
                stack.callback(session.bus.subscribe(kind, listener))
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Return the callback for streamed text, if any."""
        return None

    @property
    def shows_text(self) -> bool:
        """Whether a person has seen the text of the model by the end of the run."""
        return False

    def _on_response(self, event: ModelResponded) -> None: ...

    def _on_tool_call(self, event: ToolInvoked) -> None: ...

    def _on_retry(self, event: RequestRetried) -> None: ...

    def _on_compaction(self, event: ContextCompacted) -> None: ...

    def _on_connection(self, event: NetworkConnection) -> None: ...


def describe_usage(usage: TokenUsage, cost: float | None) -> dict[str, object]:
    """Return tokens and cost as data; `cost` is None if a price is unknown."""
    counts = pick(usage, "input_tokens", "cached_tokens", "output_tokens")
    return {**counts, "cost_usd": None if cost is None else round(cost, 6)}


class JsonView(View):
    """One JSON object per line on standard output."""

    def __init__(self, stop: Callable[[str], None], stream: IO[str] | None = None) -> None:
        """Write to `stream`; call `stop` when the reader is gone."""
        self._stop = stop
        self._stream: IO[str] | None = sys.stdout if stream is None else stream
        self._is_closed = self._stream is None
        self._lock = Lock()

    def emit(self, event: str, facts: Mapping[str, object], text: str | Text | None = None) -> None:
        """Print the data."""
        del text  # programs read data
        if self._stream is None or self._is_closed:
            return
        line = json.dumps({"event": event, **facts}, default=str)
        try:
            with self._lock:  # connections are reported by threads of the proxy
                click.echo(line, file=self._stream)
                self._stream.flush()
        except OSError:
            self._is_closed = True
            self._stop("the output was closed")

    def _on_response(self, event: ModelResponded) -> None:
        assert self._progress is not None
        facts = pick(event, "step", "text", "tool_calls", "stop_reason")
        facts |= describe_usage(event.usage, self._progress.cost_of(event.usage))
        self._emit("step", {**facts, "duration_ms": event.duration_ms})

    def _on_tool_call(self, event: ToolInvoked) -> None:
        assert self._progress is not None
        facts = {
            "step": self._progress.steps,
            **pick(event, "tool", "paths", "success", "duration_ms"),
            "params": dict(event.params),
            "message": result_text(event),
            "command": None if event.command is None else asdict(event.command),
        }
        self._emit("tool", facts)

    def _on_retry(self, event: RequestRetried) -> None:
        self.emit("retry", pick(event, "step", "retry", "delay", "error"))

    def _on_compaction(self, event: ContextCompacted) -> None:
        names = ("step", "reason", "window", "tokens_before", "tokens_after")
        self.emit("compacted", pick(event, *names, "shortened", "summarized", "fits"))

    def _on_connection(self, event: NetworkConnection) -> None:
        self._emit("network", asdict(event))

    def _emit(self, event: str, facts: Mapping[str, Any]) -> None:
        """Print data with a duration."""
        self.emit(event, {**facts, "duration_ms": round(facts["duration_ms"], 3)})
