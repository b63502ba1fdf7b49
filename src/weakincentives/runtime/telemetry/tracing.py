"""Tracing: the `Span` and `Tracing` protocols, and the current tracing of a context.

The application chooses where spans go (`use_tracing`); the code that starts spans does not
know. Without a tracing, a span costs next to nothing. Tracing never affects the traced
work: an error in it is logged, and the work continues.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, TypeAlias

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
"""The value of a span attribute."""
_log = logging.getLogger(__name__)


class Span(Protocol):
    """A traced operation."""

    @property
    def is_recording(self) -> bool:
        """Whether the span is recorded; if not, skip attributes that are costly to compute."""
        ...

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; never use it for content of users, models or files."""
        ...

    def content(self, name: str, value: object) -> None:
        """Set an attribute to content of a user, model or tool, if content is recorded."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Mark the span as failed, with an exception or an error type in one word."""
        ...


class Tracing(Protocol):
    """Creates spans and sends them somewhere."""

    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> AbstractContextManager[Span]:
        """Start a child of the current span; an exception that leaves it marks it as failed.

        Args:
            name: The operation; from a small set of names.
            attributes: The attributes known at the start.
            remote: Whether another service does the work.
        """
        ...


class _NoSpan:
    """A span that is not recorded; a singleton."""

    __slots__ = ()
    is_recording = False

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set(self, name: str, value: AttributeValue) -> None:
        pass

    def content(self, name: str, value: object) -> None:
        pass

    def fail(self, error: BaseException | str) -> None:
        pass


class _NoTracing:
    """Records nothing."""

    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> AbstractContextManager[Span]:
        del name, attributes, remote  # the protocol's
        return NO_SPAN


NO_SPAN = _NoSpan()
"""The span of `NO_TRACING`."""
NO_TRACING: Tracing = _NoTracing()
"""The default: spans are not recorded."""
_current: ContextVar[Tracing] = ContextVar("tracing", default=NO_TRACING)


def current_tracing() -> Tracing:
    """Return the tracing of this context."""
    return _current.get()


@contextmanager
def use_tracing(tracing: Tracing) -> Generator[None, None, None]:
    """Send the spans of a `with` block to `tracing`; new threads do not inherit it."""
    token = _current.set(tracing)
    try:
        yield
    finally:
        _current.reset(token)


def start_span(
    name: str,
    attributes: Mapping[str, AttributeValue],
    *,
    contents: Mapping[str, object] | None = None,
    remote: bool = False,
) -> AbstractContextManager[Span]:
    """Trace a `with` block; errors of the tracing itself are logged and suppressed.

    Args:
        name: The operation; from a small set of names.
        attributes: The attributes known at the start.
        contents: Attributes that are set only if content is recorded.
        remote: Whether another service does the work.
    """
    tracing = _current.get()
    if tracing is NO_TRACING:
        return NO_SPAN
    return _SafeSpan(tracing, name, attributes, contents or {}, remote=remote)


class _SafeSpan:
    """A span whose own errors are logged and suppressed."""

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        attributes: Mapping[str, AttributeValue],
        contents: Mapping[str, object],
        *,
        remote: bool,
    ) -> None:
        self._tracing = tracing
        self._name = name
        self._attributes = attributes
        self._contents = contents
        self._remote = remote
        self._manager: AbstractContextManager[Span] = NO_SPAN
        self._span: Span = NO_SPAN
        self.is_recording = False

    def __enter__(self) -> Span:
        with _log_errors(self._name):
            manager = self._tracing.span(self._name, self._attributes, remote=self._remote)
            self._span = manager.__enter__()
            self._manager = manager
            self.is_recording = self._span.is_recording
        for name, value in self._contents.items():
            self.content(name, value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _log_errors(self._name):
            self._manager.__exit__(kind, error, traceback)

    def set(self, name: str, value: AttributeValue) -> None:
        with _log_errors(self._name):
            self._span.set(name, value)

    def content(self, name: str, value: object) -> None:
        with _log_errors(self._name):
            self._span.content(name, value)

    def fail(self, error: BaseException | str) -> None:
        with _log_errors(self._name):
            self._span.fail(error)


@contextmanager
def _log_errors(name: str) -> Generator[None, None, None]:
    try:
        yield
    except Exception:  # noqa: BLE001 # tracing must not stop the traced work
        _log.warning("Tracing of %r failed", name, exc_info=True)
