"""What is seen of a run while it goes on: lines for people, JSON for programs, or nothing."""

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.quantities import brief_time
from weakincentives.cli.run_progress import CHANGES, Progress, said_by, target_of, took
from weakincentives.cli.terminal import is_terminal, one_line, wants_colour
from weakincentives.filesystem import MountProgress
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

_NAME_WIDTH = 13
_PLAIN_WIDTH = 160


class View(Protocol):
    """Shows a run; `watching` is around it, the rest is said before and after."""

    def told(self, event: str, facts: Mapping[str, object], sentence: str | None = None) -> None:
        """Say something about the run as a whole: in data, and in words if there are any."""
        ...

    def copying(self) -> AbstractContextManager[Callable[[MountProgress], object] | None]:
        """Show how far a copy has come; what is returned is told of it."""
        ...

    def watching(self, session: Session, progress: Progress) -> AbstractContextManager[None]:
        """Show what happens in a session, for as long as the context lasts."""
        ...

    def heard(self) -> Callable[[str], None] | None:
        """Return what is told each piece of the model's text, if anything."""
        ...


@contextmanager
def _following(
    session: Session,
    progress: Progress,
    *,
    answered: Callable[[ModelResponded], object],
    called: Callable[[ToolInvoked], object],
    retried: Callable[[RequestRetried], object],
) -> Generator[None, None, None]:
    """Tell of what happens in a session; the progress is told first."""
    bus = session.bus
    stops = [bus.subscribe(kind, progress.changed) for kind in CHANGES]
    stops += [
        bus.subscribe(ModelResponded, progress.answered),
        bus.subscribe(ToolInvoked, progress.called),
        bus.subscribe(RequestRetried, progress.retried),
        bus.subscribe(ModelResponded, answered),
        bus.subscribe(ToolInvoked, called),
        bus.subscribe(RequestRetried, retried),
    ]
    try:
        yield
    finally:
        for stop in stops:
            stop()


class LinesView:
    """A line for each thing that happens, and on a terminal a last line that lives."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Write to `stream`, standard error if omitted."""
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

    def told(self, event: str, facts: Mapping[str, object], sentence: str | None = None) -> None:
        """Say it in words."""
        if sentence:
            self._console.print(sentence, soft_wrap=True)

    @contextmanager
    def copying(self) -> Generator[Callable[[MountProgress], object] | None, None, None]:
        """Show how far a copy has come, on a terminal."""
        if not self._is_live:
            yield None
            return
        with self._console.status("copying") as status:
            yield lambda done: status.update(
                f"copying, {done.done_files:,} of {done.total_files:,} files"
            )

    @contextmanager
    def watching(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show what happens in a session."""
        self._progress = progress
        live = (
            Live(
                console=self._console,
                get_renderable=self._footer,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            if self._is_live
            else nullcontext()
        )
        with (
            live,
            _following(
                session,
                progress,
                answered=self._answered,
                called=self._called,
                retried=self._retried,
            ),
        ):
            yield

    def heard(self) -> Callable[[str], None] | None:
        """Return what counts the text, where a person sees the number."""
        return self._progress.heard if self._is_live and self._progress else None

    def _footer(self) -> Table:
        line = Table.grid(padding=(0, 1))
        line.add_column(width=1)
        line.add_column(no_wrap=True, overflow="ellipsis")
        assert self._progress is not None
        line.add_row(self._spinner, Text(self._progress.line(), style="dim"))
        return line

    def _answered(self, event: ModelResponded) -> None:
        if event.text.strip() and event.tool_calls:
            self._line(Text.assemble(("  ", ""), (one_line(event.text, self._width()), "italic")))

    def _called(self, event: ToolInvoked) -> None:
        good = event.success
        lead = f"{'' if good else 'failed '}{event.tool}"
        room = max(10, self._width() - max(_NAME_WIDTH, len(lead)) - 14)
        text = Text("  ")
        text.append(f"{one_line(lead, 40):<{_NAME_WIDTH}}", "cyan" if good else "red")
        text.append(f"  {target_of(event, room)}")
        text.append(f"  {took(event)}", "dim")
        self._line(text)
        if not good:
            self._line(Text(f"    {one_line(said_by(event), self._width() - 4)}", "red"))

    def _retried(self, event: RequestRetried) -> None:
        wait = brief_time(event.delay * 1000)
        told = f"  again in {wait}: {one_line(event.error, self._width() - 24)}"
        self._line(Text(told, "yellow"))

    def _line(self, text: Text) -> None:
        self._console.print(text, no_wrap=True, overflow="ellipsis", crop=self._is_live)

    def _width(self) -> int:
        return self._console.width - 2


class JsonView:
    """One JSON object per line on standard output."""

    def __init__(self, stop: Callable[[str], None], stream: IO[str] | None = None) -> None:
        """Write to `stream`; `stop` is called when nobody reads any more."""
        self._stop = stop
        self._stream: IO[str] | None = sys.stdout if stream is None else stream
        self._is_closed = self._stream is None

    def told(self, event: str, facts: Mapping[str, object], sentence: str | None = None) -> None:
        """Say it in data."""
        if self._stream is None or self._is_closed:
            return
        line = json.dumps({"event": event, **facts}, default=str)
        try:
            click.echo(line, file=self._stream)
            self._stream.flush()
        except OSError:
            self._is_closed = True
            self._stop("nobody reads the output")

    def copying(self) -> AbstractContextManager[None]:
        """Say nothing of the copy."""
        return nullcontext()

    @contextmanager
    def watching(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Show what happens in a session."""
        with _following(
            session,
            progress,
            answered=self._answered,
            called=lambda event: self._called(event, progress),
            retried=self._retried,
        ):
            yield

    def heard(self) -> Callable[[str], None] | None:
        """Return nothing: text comes with its step."""
        return None

    def _answered(self, event: ModelResponded) -> None:
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
        self.told("step", facts)

    def _called(self, event: ToolInvoked, progress: Progress) -> None:
        facts = {
            "step": progress.steps,
            "tool": event.tool,
            "params": dict(event.params),
            "paths": list(event.paths),
            "success": event.success,
            "message": said_by(event),
            "duration_ms": round(event.duration_ms, 3),
        }
        self.told("tool", facts)

    def _retried(self, event: RequestRetried) -> None:
        facts = {
            "step": event.step,
            "retry": event.retry,
            "delay": event.delay,
            "error": event.error,
        }
        self.told("retry", facts)


class QuietView:
    """Nothing while it goes on."""

    def told(self, event: str, facts: Mapping[str, object], sentence: str | None = None) -> None:
        """Say nothing."""

    def copying(self) -> AbstractContextManager[None]:
        """Say nothing of the copy."""
        return nullcontext()

    @contextmanager
    def watching(self, session: Session, progress: Progress) -> Generator[None, None, None]:
        """Keep the progress, and show nothing of it."""

        def nothing(_: object) -> None:
            return None

        with _following(session, progress, answered=nothing, called=nothing, retried=nothing):
            yield

    def heard(self) -> Callable[[str], None] | None:
        """Return nothing."""
        return None
