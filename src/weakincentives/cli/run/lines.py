"""A view for people: a line per event, and on a terminal a live footer."""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.run.progress import Progress, describe_target, result_text
from weakincentives.cli.run.view import subscribe
from weakincentives.cli.terminal import is_terminal, shorten, wants_colour
from weakincentives.cli.units import format_duration
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.sandbox import NetworkConnection

_NAME_WIDTH = 13
_PLAIN_WIDTH = 160


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
            subscribe(
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
