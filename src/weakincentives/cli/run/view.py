"""Output of a run: its progress and its diff.

Progress is printed as lines with a live footer, as JSON lines, or not at all. A diff is coloured
and paged on a terminal; elsewhere it is the patch itself.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from threading import Lock
from typing import IO, Any, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.terminal import escape_controls, is_terminal, shorten, wants_colour
from weakincentives.cli.units import format_clock, format_count, format_duration
from weakincentives.filesystem import (
    Diff,
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.posix import display_path
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import call_subject
from weakincentives.sandbox import NetworkConnection

CHANGES = (FileWritten, FileDeleted, DirectoryCreated, LinkCreated, EntryMoved)
"""The events of a changed path."""
_MAX_PATHS = 3
_HEAD = (
    "diff --git ",
    "--- ",
    "+++ ",
    "new file",
    "deleted file",
    "old mode",
    "new mode",
)
_EXTENDED_HEAD = ("rename ", "similarity ", "# wink:")
_OBJECT_IDS = "index "
_BINARY = "GIT binary patch"
_BINARY_DATA = re.compile(r"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]*|(literal|delta) \d+|")
_PROMPT_LINES = 4


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


_NAME_WIDTH = 13
_PLAIN_WIDTH = 160


class View(Protocol):
    """Shows a run: `observe` during it, `emit` before and after."""

    def emit(self, event: str, facts: Mapping[str, object], text: str | None = None) -> None:
        """Report an event of the whole run as data, and as text if there is any."""
        ...

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show what is being done until the context ends; `describe` is called again and again."""
        ...

    def observe(self, session: Session, progress: Progress) -> AbstractContextManager[None]:
        """Show the events of a session until the context ends."""
        ...

    def on_text(self) -> Callable[[str], None] | None:
        """Return the callback for streamed text, if any."""
        ...


@contextmanager
def _subscribe(
    session: Session,
    progress: Progress,
    *,
    on_response: Callable[[ModelResponded], object],
    on_tool_call: Callable[[ToolInvoked], object],
    on_retry: Callable[[RequestRetried], object],
    on_connection: Callable[[NetworkConnection], object],
) -> Generator[None, None, None]:
    """Subscribe to the events of a session; the progress is updated before the callbacks."""
    bus = session.bus
    subscriptions = [bus.subscribe(kind, progress.on_change) for kind in CHANGES]
    subscriptions += [
        bus.subscribe(ModelResponded, progress.on_response),
        bus.subscribe(ToolInvoked, progress.on_tool_call),
        bus.subscribe(RequestRetried, progress.on_retry),
        bus.subscribe(ModelResponded, on_response),
        bus.subscribe(ToolInvoked, on_tool_call),
        bus.subscribe(RequestRetried, on_retry),
        bus.subscribe(NetworkConnection, on_connection),
    ]
    try:
        yield
    finally:
        for unsubscribe in subscriptions:
            unsubscribe()


class LinesView:
    """A line per event, and on a terminal a live footer."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Write to `stream`, by default standard error."""
        target = sys.stderr if stream is None else stream
        self._is_live = is_terminal(target)
        self._console = Console(
            file=target,
            force_terminal=self._is_live,
            color_system="auto" if wants_colour(target) else None,
            width=None if self._is_live else _PLAIN_WIDTH,
            highlight=False,
            emoji=False,
            markup=False,
            soft_wrap=not self._is_live,
        )
        self._spinner = Spinner("dots", style="cyan")
        self._progress: Progress | None = None

    def emit(self, event: str, facts: Mapping[str, object], text: str | None = None) -> None:
        """Print the text."""
        del event, facts  # people read text
        if text:
            self._console.print(text, soft_wrap=True)

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show a line on a terminal."""
        if not self._is_live:
            return nullcontext()
        return Live(
            console=self._console,
            get_renderable=lambda: self._render_line(describe()),
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @contextmanager
    def observe(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show the events of a session."""
        self._progress = progress
        with (
            self.show_activity(progress.line),
            _subscribe(
                session,
                progress,
                on_response=self._on_response,
                on_tool_call=self._on_tool_call,
                on_retry=self._on_retry,
                on_connection=self._on_connection,
            ),
        ):
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Count the text where the footer shows the number."""
        return self._progress.on_text if self._is_live and self._progress else None

    def _render_line(self, text: str) -> Table:
        line = Table.grid(padding=(0, 1))
        line.add_column(width=1)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(self._spinner, Text(text, style="dim"))
        return line

    def _on_response(self, event: ModelResponded) -> None:
        if event.text.strip() and event.tool_calls:
            self._print_line(
                Text.assemble(("  ", ""), (shorten(event.text, self._width()), "italic"))
            )

    def _on_tool_call(self, event: ToolInvoked) -> None:
        succeeded = event.success
        label = f"{'' if succeeded else 'failed '}{event.tool}"
        room = max(10, self._width() - max(_NAME_WIDTH, len(label)) - 14)
        text = Text("  ")
        text.append(f"{shorten(label, 40):<{_NAME_WIDTH}}", "cyan" if succeeded else "red")
        text.append(f"  {describe_target(event, room)}")
        text.append(f"  {format_duration(event.duration_ms)}", "dim")
        self._print_line(text)
        if not succeeded:
            self._print_line(Text(f"    {shorten(result_text(event), self._width() - 4)}", "red"))

    def _on_retry(self, event: RequestRetried) -> None:
        delay = format_duration(event.delay * 1000)
        text = f"  retry in {delay}: {shorten(event.error, self._width() - 24)}"
        self._print_line(Text(text, "yellow"))

    def _on_connection(self, event: NetworkConnection) -> None:
        if event.reason:
            reason = event.reason.removeprefix("wink: ")
            self._print_line(Text(f"  network: {shorten(reason, self._width() - 11)}", "yellow"))

    def _print_line(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ellipsis", crop=self._is_live)

    def _width(self) -> int:
        return self._console.width - 2


class JsonView:
    """One JSON object per line on standard output."""

    def __init__(self, stop: Callable[[str], None], stream: IO[str] | None = None) -> None:
        """Write to `stream`; call `stop` when the reader is gone."""
        self._stop = stop
        self._stream: IO[str] | None = sys.stdout if stream is None else stream
        self._is_closed = self._stream is None
        self._lock = Lock()

    def emit(self, event: str, facts: Mapping[str, object], text: str | None = None) -> None:
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

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show nothing."""
        del describe  # nobody looks
        return nullcontext()

    @contextmanager
    def observe(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show the events of a session."""
        with _subscribe(
            session,
            progress,
            on_response=self._on_response,
            on_tool_call=lambda event: self._on_tool_call(event, progress),
            on_retry=self._on_retry,
            on_connection=self._on_connection,
        ):
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Return None: the text is part of its step."""
        return None

    def _on_response(self, event: ModelResponded) -> None:
        usage = event.usage
        facts = {
            "step": event.step,
            "text": event.text,
            "tool_calls": list(event.tool_calls),
            "stop_reason": event.stop_reason,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "duration_ms": round(event.duration_ms, 3),
        }
        self.emit("step", facts)

    def _on_tool_call(self, event: ToolInvoked, progress: Progress) -> None:
        facts = {
            "step": progress.steps,
            "tool": event.tool,
            "params": dict(event.params),
            "paths": list(event.paths),
            "success": event.success,
            "message": result_text(event),
            "duration_ms": round(event.duration_ms, 3),
        }
        self.emit("tool", facts)

    def _on_retry(self, event: RequestRetried) -> None:
        facts = {
            "step": event.step,
            "retry": event.retry,
            "delay": event.delay,
            "error": event.error,
        }
        self.emit("retry", facts)

    def _on_connection(self, event: NetworkConnection) -> None:
        facts = asdict(event)
        facts["duration_ms"] = round(event.duration_ms, 3)
        self.emit("network", facts)


class QuietView:
    """No output during the run."""

    def emit(self, event: str, facts: Mapping[str, object], text: str | None = None) -> None:
        """Print nothing."""

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show nothing."""
        del describe  # nobody looks
        return nullcontext()

    @contextmanager
    def observe(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Update the progress without showing it."""

        def ignore(_: object) -> None:
            return None

        with _subscribe(
            session,
            progress,
            on_response=ignore,
            on_tool_call=ignore,
            on_retry=ignore,
            on_connection=ignore,
        ):
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Return None."""
        return None


def describe_diff(diff: Diff) -> dict[str, Any]:
    """Return the changed paths as data, and how many lines changed."""
    numbers = diff.statistics
    return {
        "changes": [
            {
                "path": change.path,
                "kind": change.kind,
                "source": change.source,
                "insertions": count.insertions,
                "deletions": count.deletions,
                "binary": count.is_binary,
            }
            for change, count in zip(diff.entries, diff.line_counts, strict=True)
        ],
        "files_changed": numbers.files_changed,
        "insertions": numbers.insertions,
        "deletions": numbers.deletions,
    }


def show_diff(diff: Diff) -> None:
    """Print a diff on standard output: coloured on a terminal, else as a patch."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        return
    if not is_terminal(sys.stdout):
        stream = sys.stdout.buffer  # a patch is bytes
        for chunk in diff.patch_chunks():
            stream.write(chunk)
        stream.flush()
        return
    colour = wants_colour(sys.stdout)
    lines = (f"{_colour(line)}\n" for line in _drop_git_data(_split_lines(diff.patch_chunks())))
    height = shutil.get_terminal_size().lines - _PROMPT_LINES
    first = list(islice(lines, height))
    if len(first) < height:
        click.echo("".join(first), nl=False, color=colour)
    else:
        # None lets click find out whether the pager shows colour
        click.echo_via_pager(chain(first, lines), color=None if colour else False)


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a patch, with control characters escaped."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (escape_controls(line.decode("utf-8", "replace")) for line in complete)
    if rest:
        yield escape_controls(rest.decode("utf-8", "replace"))


def _drop_git_data(lines: Iterable[str]) -> Iterator[str]:
    """Drop what only git reads: object ids and the data of binary files."""
    is_data = False
    for line in lines:
        if line.startswith(_OBJECT_IDS) or (is_data and _BINARY_DATA.fullmatch(line)):
            continue
        is_data = line == _BINARY
        yield "Binary file" if is_data else line


def _colour(line: str) -> str:
    if line.startswith(_HEAD) or line.startswith(_EXTENDED_HEAD):
        return click.style(line, bold=True)
    if line.startswith("@@"):
        return click.style(line, fg="cyan")
    colour = {"+": "green", "-": "red"}.get(line[:1])
    return line if colour is None else click.style(line, fg=colour)
