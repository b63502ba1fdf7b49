"""Spans: what is traced of prompts, model calls, tool calls and filesystem work.

Names and attributes are those of OpenTelemetry's GenAI conventions; what these have no
word for begins with `wink`. Each kind of work has one function that begins its span and
one that adds how it went.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, TypeAlias
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
from weakincentives.runtime.telemetry.tracing import (
    NO_SPAN,
    NO_TRACING,
    Span,
    current_tracing,
    start_span,
)

FilesystemOperation: TypeAlias = Literal["snapshot", "restore", "rollback", "commit"]
"""What is done to a workspace as a whole."""
UNKNOWN_TOOL = "_OTHER"
"""What a span calls a tool that does not exist: the name would be what a model said."""


def prompt_span(
    name: str, *, session_id: UUID | None = None, text: str | None = None
) -> AbstractContextManager[Span]:
    """Trace the work on a prompt, from its first model call to its last.

    Args:
        name: The prompt.
        session_id: The session that it belongs to.
        text: The prompt as it is sent; a content.
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
    """Trace one call of a model; `record_response` adds what came back.

    Args:
        model: The model that is asked.
        provider: Who runs it, as the conventions call them: `openai`, `anthropic`.
        session_id: The session that it belongs to.
        messages: What is sent, in the shape of the conventions; a content.
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
    """Add to the span of a model call, or of a prompt, what came back.

    Args:
        span: The span.
        usage: What it cost.
        model: The model that answered.
        response_id: What the provider calls the answer.
        finish_reasons: Why it ended.
        messages: What came back, in the shape of the conventions; a content.
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
    """Trace one call of a tool; `record_result` adds how it ended.

    Args:
        name: A tool that exists, or `UNKNOWN_TOOL`.
        call_id: What the provider calls the call.
        session_id: The session that it belongs to.
        arguments: What the tool is called with; a content.
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
    """Add to the span of a tool call whether it failed, and as a content what the model is told."""
    if not span.is_recording:
        return
    span.content("gen_ai.tool.call.result", text)
    if not success:
        span.fail("tool_error" if error is None else error)


def filesystem_span(
    operation: FilesystemOperation, filesystem: Filesystem | None = None
) -> AbstractContextManager[Span]:
    """Trace work on a whole workspace; `record_changes` adds how much changed."""
    if current_tracing() is NO_TRACING:
        return NO_SPAN
    kind = "" if filesystem is None else type(filesystem).__name__
    known = {"wink.filesystem.operation": operation, "wink.filesystem.kind": kind}
    return start_span(f"wink.filesystem.{operation}", _given(known))


def record_changes(span: Span, events: Iterable[FilesystemEvent] | None) -> None:
    """Add to the span of filesystem work how many paths changed, where that is known."""
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
    """Take a snapshot, traced.

    Raises:
        SnapshotError: It could not be taken.
    """
    with filesystem_span("snapshot", filesystem) as span:
        taken = filesystem.snapshot(tag=tag)
        span.set("wink.filesystem.snapshot_ref", taken.commit_ref)
    return taken


def restore_snapshot(filesystem: SnapshotableFilesystem, snapshot: FilesystemSnapshot) -> None:
    """Bring back a snapshot, traced.

    Raises:
        SnapshotRestoreError: It cannot be brought back.
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
    """Begin a span as the GenAI conventions name it."""
    attributes = _given({"gen_ai.operation.name": operation, **known})
    said = {name: value for name, value in contents.items() if value is not None}
    return start_span(f"{operation} {name}", attributes, contents=said, remote=remote)


def _given(known: Mapping[str, object]) -> dict[str, str]:
    """Return what is known, as text."""
    return {name: str(value) for name, value in known.items() if value not in (None, "")}
