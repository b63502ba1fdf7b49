"""Tracing: spans around the work of an agent, for whoever wants to see it.

Who runs the work says where spans go (`use_tracing`); the code in between opens them
and knows nothing about that. Without it a span costs next to nothing. Tracing never
changes what is traced: a tracer that fails is logged, and the work goes on.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, TypeAlias

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
"""What an attribute of a span may be."""
_log = logging.getLogger(__name__)


class Span(Protocol):
    """Work that is being traced."""

    @property
    def is_recording(self) -> bool:
        """Whether anybody will see it; what costs time to find out can be left out if not."""
        ...

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; never something that users, models or files say."""
        ...

    def content(self, name: str, value: object) -> None:
        """Set an attribute to what a user, a model or a tool said, where that is recorded."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Mark it as failed, by an exception or by a kind of error in one word."""
        ...


class Tracing(Protocol):
    """Where spans go."""

    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> AbstractContextManager[Span]:
        """Begin a span inside the current one; an exception that leaves it marks it as failed.

        Args:
            name: What is done, one of few words.
            attributes: What is known about it at the beginning.
            remote: Another service does it.
        """
        ...


class _NoSpan:
    """A span that nobody sees; one is enough for all."""

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
    """Nobody looks."""

    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> AbstractContextManager[Span]:
        return NO_SPAN


NO_SPAN = _NoSpan()
"""What `NO_TRACING` gives for every span."""
NO_TRACING: Tracing = _NoTracing()
"""Spans go nowhere; this is how it is until somebody says otherwise."""
_current: ContextVar[Tracing] = ContextVar("tracing", default=NO_TRACING)


def current_tracing() -> Tracing:
    """Return where the spans of this context go."""
    return _current.get()


@contextmanager
def use_tracing(tracing: Tracing) -> Generator[None, None, None]:
    """Send the spans of a `with` block to `tracing`; a new thread starts without."""
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
    """Trace a `with` block; what the tracing itself raises is logged and goes no further.

    Args:
        name: What is done, one of few words.
        attributes: What is known about it at the beginning.
        contents: Attributes that are kept only where contents are recorded.
        remote: Another service does it.
    """
    tracing = _current.get()
    if tracing is NO_TRACING:
        return NO_SPAN
    return _SafeSpan(tracing, name, attributes, contents or {}, remote)


class _SafeSpan:
    """A span whose own failures are logged and go no further."""

    def __init__(
        self,
        tracing: Tracing,
        name: str,
        attributes: Mapping[str, AttributeValue],
        contents: Mapping[str, object],
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
        with _only_logged(self._name):
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
        with _only_logged(self._name):
            self._manager.__exit__(kind, error, traceback)

    def set(self, name: str, value: AttributeValue) -> None:
        with _only_logged(self._name):
            self._span.set(name, value)

    def content(self, name: str, value: object) -> None:
        with _only_logged(self._name):
            self._span.content(name, value)

    def fail(self, error: BaseException | str) -> None:
        with _only_logged(self._name):
            self._span.fail(error)


@contextmanager
def _only_logged(name: str) -> Generator[None, None, None]:
    try:
        yield
    except Exception:  # noqa: BLE001 # the work goes on whatever a tracing does
        _log.warning("Tracing of %r failed", name, exc_info=True)
