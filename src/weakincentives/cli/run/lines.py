"""A view for people: the model's text as it arrives, a line per tool call, and a status line.

Without a terminal there are only plain lines: nothing is drawn twice, and nothing moves.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Event, RLock

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.spinner import Spinner
from rich.text import Text

from weakincentives.adapters import (
    ContextCompacted,
    ModelResponded,
    RequestRetried,
    RunCancelledError,
)
from weakincentives.cli.activity import (
    NOTICE_AFTER,
    create_console,
    render_status,
    run_beside,
    show_activity,
    show_live,
)
from weakincentives.cli.markdown import MarkdownStream
from weakincentives.cli.run.view import (
    Progress,
    View,
    describe_refusal,
    describe_target,
    lacks_network,
    result_text,
)
from weakincentives.cli.terminal import cut, escape_controls, shorten
from weakincentives.cli.units import format_duration
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.sandbox import NetworkConnection

_NAME_WIDTH = 13
_MIN_TARGET = 12  # cells for what a call was about, before its result moves to the next line
_MAX_EXCERPT = 6  # lines of a failure
_STATUS_HEIGHT = 3  # lines that the status needs, and one above


class LinesView(View):
    """A line per event; on a terminal with the model's text and a status line that changes."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        notice_after: float = NOTICE_AFTER,
        is_verbose: bool = False,
    ) -> None:
        """Write to `console`, by default on standard error.

        Args:
            console: Where to write.
            notice_after: Seconds after which a wait is reported where there is no terminal.
            is_verbose: Print all that the model gets of what its commands print.
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


class _LiveRegion:
    """The unfinished text of the model, what its command prints, and the status line."""

    def __init__(self, stream: MarkdownStream, spinner: Spinner, progress: Progress) -> None:
        self._stream = stream
        self._spinner = spinner
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        height = max(1, console.height - _STATUS_HEIGHT - 1)
        text = self._stream.render(console, options, height)
        if text is not None:
            yield Text()
            yield text
        output = self._progress.last_output()
        if output:
            yield Text(cut(f"    {output}", width), "dim", no_wrap=True)
        yield render_status(self._spinner, self._progress.line(width - 2))


def _describe_call(event: ToolInvoked, width: int, *, is_whole: bool) -> Iterator[Text]:
    """Yield the lines about a finished call; the result is never cut off."""
    failed = not event.success or (event.command is not None and event.command.failed)
    label = shorten(f"{_describe_failure(event)}{event.tool}", 40)
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


def _describe_failure(event: ToolInvoked) -> str:
    if event.success:
        return ""
    return "interrupted " if _is_interrupted(event) else "failed "


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
