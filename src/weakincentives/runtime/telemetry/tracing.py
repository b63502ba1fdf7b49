"""Tracing: spans for prompts, model requests, tool calls and filesystem operations.

The application chooses where spans go (`use_tracing`); the code that starts spans does not
know. Without a tracing, a span costs next to nothing. Tracing never affects the traced
work: an error in it is logged, and the work continues.

Names and attributes follow OpenTelemetry's GenAI conventions; attributes that these do not
define begin with `wink`. Each kind of span has one function that starts it and one that
records the outcome.
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from weakincentives.filesystem import (
    EntryMoved,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    SnapshotableFilesystem,
    StateReplaced,
)
from weakincentives.runtime.budget import TokenUsage

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
"""The value of a span attribute."""
_log = logging.getLogger(__name__)
FilesystemOperation: TypeAlias = Literal["snapshot", "restore", "rollback", "commit"]
"""An operation on a whole workspace."""
UNKNOWN_TOOL = "_OTHER"
"""The name of a nonexistent tool in a span: its real name comes from a model and is content."""


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


def prompt_span(
    name: str, *, session_id: UUID | None = None, text: str | None = None
) -> AbstractContextManager[Span]:
    """Trace the work on a prompt, from its first model request to its last.

    Args:
        name: The prompt.
        session_id: The ID of its session.
        text: The rendered prompt; content.
    """
    if current_tracing() is NO_TRACING:
        return NO_SPAN
    known = {"gen_ai.agent.name": name, "gen_ai.conversation.id": session_id}
    instructions = None if text is None else [{"type": "text", "content": text}]
    return _operation("invoke_agent", name, known, {"gen_ai.system_instructions": instructions})


def model_span(
    model: str,
    *,
    provider: str,
    session_id: UUID | None = None,
    messages: Sequence[object] | None = None,
) -> AbstractContextManager[Span]:
    """Trace one model request; `record_response` records the response.

    Args:
        model: The requested model.
        provider: The provider, named as in the conventions: `openai`, `anthropic`.
        session_id: The ID of the session.
        messages: The request messages, in the format of the conventions; content.
    """
    if current_tracing() is NO_TRACING:
        return NO_SPAN
    known = {
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.conversation.id": session_id,
    }
    return _operation("chat", model, known, {"gen_ai.input.messages": messages}, remote=True)


def record_response(
    span: Span,
    *,
    usage: TokenUsage | None = None,
    model: str | None = None,
    response_id: str | None = None,
    finish_reasons: Sequence[str] = (),
    messages: Sequence[object] | None = None,
) -> None:
    """Record the response in the span of a model request or a prompt.

    Args:
        span: The span.
        usage: The tokens used.
        model: The model that responded.
        response_id: The provider's ID of the response.
        finish_reasons: Why the response ended.
        messages: The response messages, in the format of the conventions; content.
    """
    if not span.is_recording:
        return
    if usage is not None:
        span.set("gen_ai.usage.input_tokens", usage.input_tokens)
        span.set("gen_ai.usage.output_tokens", usage.output_tokens)
        span.set("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
    if model:
        span.set("gen_ai.response.model", model)
    if response_id:
        span.set("gen_ai.response.id", response_id)
    if finish_reasons:
        span.set("gen_ai.response.finish_reasons", tuple(finish_reasons))
    if messages is not None:
        span.content("gen_ai.output.messages", messages)


def tool_span(
    name: str, *, call_id: str = "", session_id: UUID | None = None, arguments: object = None
) -> AbstractContextManager[Span]:
    """Trace one tool call; `record_result` records the result.

    Args:
        name: The name of an existing tool, or `UNKNOWN_TOOL`.
        call_id: The provider's ID of the call.
        session_id: The ID of the session.
        arguments: The arguments of the call; content.
    """
    if current_tracing() is NO_TRACING:
        return NO_SPAN
    known = {
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id,
        "gen_ai.conversation.id": session_id,
    }
    return _operation("execute_tool", name, known, {"gen_ai.tool.call.arguments": arguments})


def record_result(
    span: Span, text: str, *, success: bool, error: BaseException | None = None
) -> None:
    """Record the result of a tool call: whether it failed, and its text as content."""
    if not span.is_recording:
        return
    span.content("gen_ai.tool.call.result", text)
    if not success:
        span.fail("tool_error" if error is None else error)


def filesystem_span(
    operation: FilesystemOperation, filesystem: Filesystem | None = None
) -> AbstractContextManager[Span]:
    """Trace an operation on a workspace; `record_changes` records how many paths changed."""
    if current_tracing() is NO_TRACING:
        return NO_SPAN
    kind = "" if filesystem is None else type(filesystem).__name__
    known = {"wink.filesystem.operation": operation, "wink.filesystem.kind": kind}
    return start_span(f"wink.filesystem.{operation}", _format_known(known))


def record_changes(span: Span, events: Iterable[FilesystemEvent] | None) -> None:
    """Record how many paths changed, if that is known."""
    if events is None or not span.is_recording:
        return
    paths: set[str] = set()
    for event in events:
        if isinstance(event, StateReplaced):
            return  # anything may differ
        if isinstance(event, EntryMoved):
            paths.add(event.source)
        paths.add(event.path)
    span.set("wink.filesystem.paths_changed", len(paths))


def take_snapshot(filesystem: SnapshotableFilesystem, tag: str | None = None) -> FilesystemSnapshot:
    """Take a snapshot and trace it.

    Raises:
        SnapshotError: It could not be taken.
    """
    with filesystem_span("snapshot", filesystem) as span:
        snapshot = filesystem.snapshot(tag=tag)
        span.set("wink.filesystem.snapshot_ref", snapshot.commit_ref)
    return snapshot


def restore_snapshot(filesystem: SnapshotableFilesystem, snapshot: FilesystemSnapshot) -> None:
    """Restore a snapshot and trace it.

    Raises:
        SnapshotRestoreError: It could not be restored.
    """
    with filesystem_span("restore", filesystem) as span:
        span.set("wink.filesystem.snapshot_ref", snapshot.commit_ref)
        filesystem.restore(snapshot)


def _operation(
    operation: str,
    name: str,
    known: Mapping[str, object],
    contents: Mapping[str, object],
    *,
    remote: bool = False,
) -> AbstractContextManager[Span]:
    """Start a span named as in the GenAI conventions."""
    attributes = _format_known({"gen_ai.operation.name": operation, **known})
    present = {name: value for name, value in contents.items() if value is not None}
    return start_span(f"{operation} {name}", attributes, contents=present, remote=remote)


def _format_known(known: Mapping[str, object]) -> dict[str, str]:
    """Return the attributes that have a value, as text."""
    return {name: str(value) for name, value in known.items() if value not in (None, "")}
