"""How a run is shown while it works: the protocol, as JSON lines, or not at all."""

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from threading import Lock
from typing import IO, Protocol

import click

from weakincentives.adapters import ContextCompacted, ModelResponded, RequestRetried
from weakincentives.cli.run.progress import CHANGES, Progress, result_text
from weakincentives.runtime import TokenUsage, ToolInvoked, ToolStarted
from weakincentives.runtime.session import Session
from weakincentives.sandbox import NetworkConnection


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

    @property
    def shows_text(self) -> bool:
        """Whether a person has seen the text of the model by the end of the run."""
        ...


@contextmanager
def subscribe(
    session: Session,
    progress: Progress,
    *,
    on_response: Callable[[ModelResponded], object],
    on_tool_call: Callable[[ToolInvoked], object],
    on_retry: Callable[[RequestRetried], object],
    on_compaction: Callable[[ContextCompacted], object],
    on_connection: Callable[[NetworkConnection], object],
) -> Generator[None, None, None]:
    """Subscribe to the events of a session; the progress is updated before the callbacks."""
    bus = session.bus
    subscriptions = [bus.subscribe(kind, progress.on_change) for kind in CHANGES]
    subscriptions += [
        bus.subscribe(ModelResponded, progress.on_response),
        bus.subscribe(ToolStarted, progress.on_tool_start),
        bus.subscribe(ToolInvoked, progress.on_tool_call),
        bus.subscribe(RequestRetried, progress.on_retry),
        bus.subscribe(ContextCompacted, progress.on_compaction),
        bus.subscribe(ModelResponded, on_response),
        bus.subscribe(ToolInvoked, on_tool_call),
        bus.subscribe(RequestRetried, on_retry),
        bus.subscribe(ContextCompacted, on_compaction),
        bus.subscribe(NetworkConnection, on_connection),
    ]
    try:
        yield
    finally:
        for unsubscribe in subscriptions:
            unsubscribe()


def describe_usage(usage: TokenUsage, cost: float | None) -> dict[str, object]:
    """Return tokens and cost as data; `cost` is None if a price is unknown."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if cost is None else round(cost, 6),
    }


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
        with subscribe(
            session,
            progress,
            on_response=lambda event: self._on_response(event, progress),
            on_tool_call=lambda event: self._on_tool_call(event, progress),
            on_retry=self._on_retry,
            on_compaction=self._on_compaction,
            on_connection=self._on_connection,
        ):
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Return None: the text is part of its step."""
        return None

    @property
    def shows_text(self) -> bool:
        """False: programs read data."""
        return False

    def _on_response(self, event: ModelResponded, progress: Progress) -> None:
        facts = {
            "step": event.step,
            "text": event.text,
            "tool_calls": list(event.tool_calls),
            "stop_reason": event.stop_reason,
            **describe_usage(event.usage, progress.cost_of(event.usage)),
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
            "command": None if event.command is None else asdict(event.command),
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

    def _on_compaction(self, event: ContextCompacted) -> None:
        facts = {
            "step": event.step,
            "reason": event.reason,
            "window": event.window,
            "tokens_before": event.tokens_before,
            "tokens_after": event.tokens_after,
            "shortened": event.shortened,
            "summarized": event.summarized,
            "fits": event.fits,
        }
        self.emit("compacted", facts)

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

        with subscribe(
            session,
            progress,
            on_response=ignore,
            on_tool_call=ignore,
            on_retry=ignore,
            on_compaction=ignore,
            on_connection=ignore,
        ):
            yield

    def on_text(self) -> Callable[[str], None] | None:
        """Return None."""
        return None

    @property
    def shows_text(self) -> bool:
        """False."""
        return False
