"""How far a run has come: steps, tools, files, tokens, time."""

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, cast

import click
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.terminal import is_terminal, one_line, plain, wants_colour
from weakincentives.cli.units import brief_time, clock, count_text
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileWritten,
    LinkCreated,
    MountProgress,
)
from weakincentives.posix import display_path
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

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
        touched = count_text(len(self.touched), "file touched", "files touched")
        return f"{time} · step {max(1, self.steps)} · {self.activity} · {touched} · {tokens} tokens"


def target_of(event: ToolInvoked, width: int) -> str:
    """Return what a call was about: what it ran or looked for, and its files."""
    found = [_argument(event.params)]
    if event.paths and event.paths != (".",):
        more = len(event.paths) - _MAX_PATHS
        names = [display_path(path) for path in event.paths[:_MAX_PATHS]]
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
