"""How a run is shown: its progress, and the views that people and programs read.

People see the model's text as it arrives, a line per tool call, and a status line. Without a
terminal there are only plain lines: nothing is drawn twice, and nothing moves.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from threading import Event, Lock, RLock
from typing import IO, Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.spinner import Spinner
from rich.text import Text

from weakincentives.adapters import (
    ContextCompacted,
    ModelResponded,
    RequestRetried,
    RunCancelledError,
    TokenPrice,
)
from weakincentives.characters import strip_byte_escapes
from weakincentives.cli.activity import (
    NOTICE_AFTER,
    create_console,
    format_wait,
    render_status,
    run_beside,
    show_activity,
    show_live,
)
from weakincentives.cli.markdown import MarkdownStream
from weakincentives.cli.terminal import cut, escape_controls, shorten
from weakincentives.cli.units import (
    format_clock,
    format_cost,
    format_count,
    format_duration,
    format_short_count,
    pick,
)
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
    is_byproduct,
)
from weakincentives.posix import display_paths
from weakincentives.runtime import TokenUsage, ToolInvoked, ToolStarted
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import call_subject
from weakincentives.sandbox import PERMISSION, NetworkConnection

CHANGES = (FileWritten, FileDeleted, DirectoryCreated, LinkCreated, EntryMoved)
"""The events of a changed path."""
_WAITING = "waiting for the model"
_MAX_PATHS = 3
_MAX_SUBJECT = 40  # cells of a command in the status line
_MAX_OUTPUT = 4096  # bytes
_NAME_WIDTH = 13
_MIN_TARGET = 12  # cells for what a call was about, before its result moves to the next line
_MAX_EXCERPT = 6  # lines of a failure
_STATUS_HEIGHT = 3  # lines that the status needs, and one above
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


def format_tokens(
    usage: TokenUsage,
    format_number: Callable[[int], str] = "{:,}".format,
    limit: int | None = None,
) -> str:
    """Return the tokens of a run: `12,340 tokens in (9,800 cached), 812 out`."""
    cached = f" ({format_number(usage.cached_tokens)} cached)" if usage.cached_tokens else ""
    most = "" if limit is None else f", limit {format_number(limit)}"
    return (
        f"{format_number(usage.input_tokens)} tokens in{cached},"
        f" {format_number(usage.output_tokens)} out{most}"
    )


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


class LinesView(View):
    """A line per event; on a terminal with the model's text and a status line that changes."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        notice_after: float = NOTICE_AFTER,
        is_verbose: bool = False,
    ) -> None:
        """Write to `console`, by default on standard error; if verbose, all output of commands.

        `notice_after` are the seconds after which a wait is reported where there is no terminal.
        """
        self._is_verbose = is_verbose
        self._console = create_console() if console is None else console
        self._is_live = self._console.is_terminal
        self._notice_after = notice_after
        self._spinner = Spinner("dots", style="cyan")
        self._stream = MarkdownStream(self._print_block)
        self._needs_gap = False
        self._refused: set[str] = set()  # hosts that were named
        self._lock = RLock()  # of the console, while there is a live region

    def emit(self, event: str, facts: Mapping[str, object], text: str | Text | None = None) -> None:
        """Print the text."""
        del event, facts  # people read text
        if text:
            with self._lock:
                self._console.print(text, soft_wrap=not self._is_live)

    def show_activity(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show what is being done."""
        return show_activity(describe, console=self._console, notice_after=self._notice_after)

    @contextmanager
    def observe(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show the events of a session."""
        self._needs_gap = False
        with self._show_progress(progress), super().observe(session, progress):
            yield
        self._stream.restart()

    def on_text(self) -> Callable[[str], None] | None:
        """Return the callback that shows text as it arrives, on a terminal."""
        return self._on_text if self._is_live and self._progress is not None else None

    @property
    def shows_text(self) -> bool:
        """Whether the text of the model is shown whole: on a terminal."""
        return self._is_live

    def _show_progress(self, progress: Progress) -> AbstractContextManager[object]:
        if not self._is_live:
            return self._report_waits(progress)
        region = _LiveRegion(self._stream, self._spinner, progress)
        return show_live(self._console, lambda: region, self._lock)

    def _report_waits(self, progress: Progress) -> AbstractContextManager[None]:
        """Print one line for each wait that is long."""

        def work(finished: Event) -> None:
            reported = -1.0
            while not finished.wait(min(1.0, self._notice_after / 4)):
                started = progress.activity_started
                if started != reported and progress.wait() >= self._notice_after:
                    reported = started
                    self._print_line(Text(f"  {progress.describe_activity()} ..."))

        return run_beside(work, "wink-waits")

    def _on_text(self, piece: str) -> None:
        if self._progress is not None:
            self._progress.on_text(piece)
        self._stream.feed(piece)

    def _on_response(self, event: ModelResponded) -> None:
        if self._is_live:
            self._stream.finish(event.text)
        elif event.tool_calls:  # the answer itself goes to standard output
            for line in escape_controls(event.text.strip()).split("\n"):
                if line:
                    self._console.print(Text(f"  {line}", "italic"), soft_wrap=True)

    def _on_tool_call(self, event: ToolInvoked) -> None:
        is_whole = self._is_verbose and event.command is not None
        for line in _describe_call(event, self._width(), is_whole=is_whole):
            self._print_line(line)
        if self._progress is not None and self._progress.is_offline and lacks_network(event):
            self._print_refusal("", "commands have no network; --allow-host HOST allows a host")

    def _on_retry(self, event: RequestRetried) -> None:
        again = "; the text above is sent again" if self._stream.has_printed else ""
        self._stream.restart()
        text = f"  retry in {format_duration(event.delay * 1000)}{again}: "
        self._print_line(Text(text + shorten(event.error, self._width() - len(text)), "yellow"))

    def _on_compaction(self, event: ContextCompacted) -> None:
        text = f"  context: {shorten(str(event), self._width() - 11)}"
        self._print_line(Text(text, "yellow"))

    def _on_connection(self, event: NetworkConnection) -> None:
        if event.reason:
            self._print_refusal(event.host, describe_refusal(event))

    def _print_refusal(self, host: str, reason: str) -> None:
        """Print why a host was not reached, once."""
        with self._lock:  # connections are reported by threads of the proxy
            if host in self._refused:
                return
            self._refused.add(host)
            text = f"  network: {shorten(reason, self._width() - 11)}"
            self._print_line(Text(text, "yellow"))

    def _print_block(self, block: RenderableType) -> None:
        """Print a block of the model's text, with an empty line around it."""
        with self._lock:
            self._console.print()
            self._console.print(block, end="")
            self._needs_gap = True

    def _print_line(self, text: Text) -> None:
        with self._lock:
            if self._needs_gap:
                self._console.print()
                self._needs_gap = False
            self._console.print(text, no_wrap=True, overflow="ellipsis", crop=self._is_live)

    def _width(self) -> int:
        return self._console.width


@dataclass(frozen=True, slots=True)
class _LiveRegion:
    """The unfinished text of the model, what its command prints, and the status line."""

    stream: MarkdownStream
    spinner: Spinner
    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        height = max(1, console.height - _STATUS_HEIGHT - 1)
        text = self.stream.render(console, options, height)
        if text is not None:
            yield Text()
            yield text
        output = self.progress.last_output()
        if output:
            yield Text(cut(f"    {output}", width), "dim", no_wrap=True)
        yield render_status(self.spinner, self.progress.line(width - 2))


def _describe_call(event: ToolInvoked, width: int, *, is_whole: bool) -> Iterator[Text]:
    """Yield the lines about a finished call; the result is never cut off."""
    failed = not event.success or (event.command is not None and event.command.failed)
    fact = "" if event.success else "interrupted " if _is_interrupted(event) else "failed "
    label = shorten(f"{fact}{event.tool}", 40)
    outcome = Text("" if event.command is None else str(event.command))
    outcome.stylize("bold red" if failed else "dim")
    end = Text("  ").join(filter(None, (outcome, Text(format_duration(event.duration_ms), "dim"))))
    room = width - max(_NAME_WIDTH, cell_len(label)) - cell_len(end.plain) - 6
    is_long = room < _MIN_TARGET
    if is_long:
        room = max(_MIN_TARGET, width - cell_len(label) - 4)
    yield Text.assemble(
        "  ",
        (label if is_long else f"{label:<{_NAME_WIDTH}}", "red" if failed else "cyan"),
        f"  {describe_target(event, room)}",
        *([] if is_long else ["  ", end]),
    )
    if is_long:
        yield Text.assemble("    ", end)
    for line in _lines(result_text(event)) if is_whole else _excerpt(event):
        yield Text(
            f"    {cut(escape_controls(line), width - 4)}", "dim" if event.success else "red"
        )


def _is_interrupted(event: ToolInvoked) -> bool:
    return (event.error or "").startswith(f"{RunCancelledError.__name__}:")


def _excerpt(event: ToolInvoked) -> Iterator[str]:
    """Yield the lines that tell why a call or its command failed, or the last of its output."""
    command = event.command
    if event.success:
        if command is not None and command.tail:
            if command.failed and command.truncated:
                yield "[output truncated]"
            yield from _lines(command.tail)[-_MAX_EXCERPT:]
        return
    if _is_interrupted(event):
        yield "what it changed in the copy was undone"
        return
    lines = _lines(result_text(event))
    yield from lines[:1]
    if len(lines) > _MAX_EXCERPT:
        yield "…"
    yield from lines[1:][-(_MAX_EXCERPT - 1) :]


def _lines(text: str) -> list[str]:
    return [each.expandtabs(4).rstrip() for each in text.split("\n") if each.strip()]
