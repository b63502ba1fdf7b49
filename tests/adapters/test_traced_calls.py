"""Spans of tool calls: their content, and that tracing changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from weakincentives.adapters import Approval, ToolCall, ToolExecutor, ToolOutcome
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked, use_tracing
from weakincentives.runtime.session import Session
from weakincentives.runtime.telemetry.otel import OpenTelemetryTracing

Workspace = HostFilesystem | InMemoryFilesystem


@dataclass(frozen=True)
class Files:
    """What to write, and how to end."""

    paths: tuple[str, ...]
    content: str = ""
    end: str = ""


def write(params: Files, *, context: ToolContext) -> ToolResult[str]:
    assert context.filesystem is not None
    for path in params.paths:
        context.filesystem.write(path, params.content)
    match params.end:
        case "result":
            return ToolResult.error("it failed")
        case "validation":
            raise ToolValidationError("too late to say no")
        case "bug":
            raise RuntimeError("a bug")
        case "interrupt":
            raise KeyboardInterrupt
        case _:
            return ToolResult("written")


def write_past(params: Files, *, context: ToolContext) -> ToolResult[str]:
    """Write as a shell does."""
    assert isinstance(context.filesystem, HostFilesystem)
    for path in params.paths:
        Path(context.filesystem.root, path).write_text(params.content)
    return ToolResult("written") if not params.end else ToolResult.error("it failed")


def count(params: Files, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(str(len(params.paths)))


TOOLS: list[Tool[Any, Any]] = [
    Tool("write", "Writes.", write),
    Tool("shell", "Writes past the filesystem.", write_past, bypasses_filesystem=True),
    Tool("count", "Counts.", count, read_only=True),
]


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    if request.param == "memory":
        yield InMemoryFilesystem()
    else:
        with host_in(tmp_path) as made:
            yield made


def host_in(directory: Path) -> HostFilesystem:
    (directory / "workspace").mkdir()
    return HostFilesystem(directory / "workspace", git_dir=directory / "store")


class Beginnings(SpanProcessor):
    """Notes in which order spans began."""

    def __init__(self) -> None:
        self.order: list[SpanContext | None] = []

    def on_start(self, span: ReadableSpan, parent_context: object = None) -> None:
        self.order.append(span.context)


class Traced:
    """Runs tool calls with their spans kept in memory."""

    def __init__(
        self,
        filesystem: Workspace,
        *,
        approve: bool | None = None,
        record_content: bool = False,
        processor: SpanProcessor | None = None,
    ) -> None:
        self.session = Session()
        self._exporter = InMemorySpanExporter()
        self._beginnings = Beginnings()
        provider = TracerProvider()
        provider.add_span_processor(self._beginnings)
        provider.add_span_processor(processor or SimpleSpanProcessor(self._exporter))
        self._tracing = OpenTelemetryTracing(provider, record_content=record_content)
        self._executor = ToolExecutor(
            TOOLS,
            context=ToolContext(None, None, None, self.session, filesystem=filesystem),
            policies=() if approve is None else [Approval(lambda _: approve)],
        )

    def call(self, name: str, *paths: str, content: str = "", end: str = "") -> ToolOutcome:
        arguments = {"paths": list(paths), "content": content, "end": end}
        with use_tracing(self._tracing):
            return self._executor.execute(ToolCall(name, arguments, "call-1"))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans, in the order in which they began."""
        order = self._beginnings.order
        ended = self._exporter.get_finished_spans()
        return tuple(sorted(ended, key=lambda span: order.index(span.context)))


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return span.attributes or {}


def test_a_call_that_writes_has_a_span_with_the_commit_inside(fs: Workspace):
    traced = Traced(fs)
    traced.call("write", "a", "b/c")
    tool, commit = traced.spans
    assert (tool.name, commit.name) == ("execute_tool write", "wink.filesystem.commit")
    assert commit.parent == tool.context
    assert dict(attributes(tool)) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "write",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call-1",
        "gen_ai.conversation.id": str(traced.session.session_id),
    }
    assert dict(attributes(commit)) == {
        "wink.filesystem.operation": "commit",
        "wink.filesystem.kind": type(fs).__name__,
        "wink.filesystem.paths_changed": 3,
    }
    assert tool.status.status_code is commit.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("result", "tool_error"),
        ("validation", "weakincentives.errors.ToolValidationError"),
        ("bug", "RuntimeError"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_a_call_that_fails_is_an_error_with_the_rollback_inside(end: str, kind: str, fs: Workspace):
    traced = Traced(fs)
    try:
        traced.call("write", "a", "b", end=end)
    except (RuntimeError, KeyboardInterrupt) as error:
        assert type(error).__name__ == kind
    tool, rollback = traced.spans
    assert rollback.name == "wink.filesystem.rollback"
    assert rollback.parent == tool.context
    assert tool.status.status_code is StatusCode.ERROR
    assert attributes(tool)["error.type"] == kind
    assert attributes(rollback)["wink.filesystem.paths_changed"] == 2
    assert rollback.status.status_code is StatusCode.UNSET
    assert not fs.exists("a")


def test_a_call_that_only_reads_is_one_span(fs: Workspace):
    traced = Traced(fs)
    traced.call("count", "a")
    assert [span.name for span in traced.spans] == ["execute_tool count"]


def test_a_call_past_the_filesystem_shows_the_snapshot_that_it_pays_for(tmp_path: Path):
    with host_in(tmp_path) as fs:
        traced = Traced(fs)
        traced.call("shell", "a", "b")
        tool, snapshot, commit = traced.spans
    assert snapshot.name == "wink.filesystem.snapshot"
    assert snapshot.parent == commit.parent == tool.context
    told = traced.session[ToolInvoked].latest()
    assert told is not None
    assert attributes(snapshot)["wink.filesystem.snapshot_ref"] == told.snapshot_ref
    assert attributes(commit)["wink.filesystem.paths_changed"] == 2


def test_a_failed_call_past_the_filesystem_shows_the_restore(tmp_path: Path):
    with host_in(tmp_path) as fs:
        traced = Traced(fs)
        traced.call("shell", "a", end="result")
        _, snapshot, rollback, restore = traced.spans
        assert not fs.exists("a")
    assert rollback.name == "wink.filesystem.rollback"
    assert restore.name == "wink.filesystem.restore"
    assert restore.parent == rollback.context
    reference = attributes(snapshot)["wink.filesystem.snapshot_ref"]
    assert attributes(restore)["wink.filesystem.snapshot_ref"] == reference


def test_an_approval_shows_the_snapshot_that_it_compares_with(fs: Workspace):
    traced = Traced(fs, approve=False)
    traced.call("write", "a")
    assert [span.name for span in traced.spans] == [
        "execute_tool write",
        "wink.filesystem.snapshot",
        "wink.filesystem.rollback",
    ]


def test_nothing_that_was_said_is_in_the_spans(fs: Workspace):
    traced = Traced(fs)
    traced.call("write", "secret.txt", content="secret")
    traced.call("write", "secret.txt", content="secret", end="validation")
    traced.call("write", "../secret")
    traced.call("secret_tool")
    told = [span.to_json() for span in traced.spans]
    assert len(told) == 7
    assert [each for each in told if "secret" in each] == []
    assert [span.name for span in traced.spans][-1] == "execute_tool _OTHER"


def test_what_was_said_is_in_the_span_of_the_call_when_asked_for(fs: Workspace):
    traced = Traced(fs, record_content=True)
    traced.call("write", "a.txt", content="hello")
    tool, commit = traced.spans
    assert attributes(tool)["gen_ai.tool.call.arguments"] == (
        '{"paths":["a.txt"],"content":"hello","end":""}'
    )
    assert attributes(tool)["gen_ai.tool.call.result"] == "written"
    assert "hello" not in commit.to_json()


class Failing(SpanProcessor):
    """A processor that fails at the beginning and at the end of every span."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        raise OSError("No space left on device")

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("No space left on device")


def test_a_call_is_kept_or_undone_whether_it_can_be_traced_or_not(fs: Workspace):
    traced = Traced(fs, processor=Failing())
    assert traced.call("write", "kept").result.success
    assert traced.call("write", "undone", end="result").result.message == "it failed"
    with pytest.raises(RuntimeError, match="a bug"):
        traced.call("write", "undone", end="bug")
    assert (fs.exists("kept"), fs.exists("undone")) == (True, False)
