"""Spans of runs: the prompt around its model requests and tool calls."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.adapters.workers import patient, prompt
from weakincentives.adapters import (
    AuthenticationError,
    Completion,
    ScriptedAdapter,
    ToolCall,
    TransientError,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import TokenUsage, use_tracing
from weakincentives.runtime.session import Session
from weakincentives.runtime.telemetry.otel import OpenTelemetryTracing


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def tracing(
    exporter: InMemorySpanExporter, *, record_content: bool = False
) -> OpenTelemetryTracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryTracing(provider, record_content=record_content)


def reads() -> tuple[ToolCall, ToolCall]:
    return ToolCall("read_file", {"path": "a"}, "1"), ToolCall("read_file", {"path": "b"}, "2")


def test_a_run_is_a_span_around_its_model_calls_and_tool_calls(exporter: InMemorySpanExporter):
    adapter = ScriptedAdapter(
        [
            TransientError("down"),
            Completion("", reads(), usage=TokenUsage(10, 2), model="m-1", response_id="r-1"),
            Completion("a secret", usage=TokenUsage(20, 3)),
        ],
        name="openai",
        model="m",
    )
    session = Session()
    with use_tracing(tracing(exporter)):
        adapter.evaluate(
            prompt(InMemoryFilesystem()), session=session, options=patient(lambda _: None)
        )
    spans = exporter.get_finished_spans()
    names = [span.name for span in spans if not span.name.startswith("wink.")]
    tools = ["execute_tool read_file"] * 2
    assert names == ["chat m", "chat m", *tools, "chat m", "invoke_agent tests:task"]
    whole = spans[-1]
    assert whole.context is not None
    for span in spans[:-1]:
        assert span.parent is not None
        assert span.parent.trace_id == whole.context.trace_id
    chats = [span for span in spans if span.name == "chat m"]
    assert chats[0].status.status_code is StatusCode.ERROR
    attributes = chats[1].attributes or {}
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["gen_ai.usage.input_tokens"] == 10
    assert attributes["gen_ai.response.model"] == "m-1"
    assert attributes["gen_ai.response.id"] == "r-1"
    assert (whole.attributes or {})["gen_ai.usage.output_tokens"] == 5
    assert (whole.attributes or {})["gen_ai.conversation.id"] == str(session.session_id)
    assert "secret" not in "".join(span.to_json() for span in spans)


def test_contents_are_recorded_only_when_asked_for(exporter: InMemorySpanExporter):
    adapter = ScriptedAdapter([Completion("hm", reads()), "a secret"])
    with use_tracing(tracing(exporter, record_content=True)):
        adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    last = [span for span in exporter.get_finished_spans() if span.name.startswith("chat")][-1]
    attributes = last.attributes or {}
    assert "a secret" in str(attributes["gen_ai.output.messages"])
    sent = str(attributes["gen_ai.input.messages"])
    assert '"type":"tool_call_response"' in sent
    assert '"type":"tool_call"' in sent


def test_a_run_that_fails_is_a_span_that_failed(exporter: InMemorySpanExporter):
    adapter = ScriptedAdapter([AuthenticationError("no key")])
    with use_tracing(tracing(exporter)), pytest.raises(AuthenticationError):
        adapter.evaluate(prompt(), session=Session())
    assert [span.status.status_code for span in exporter.get_finished_spans()] == [
        StatusCode.ERROR
    ] * 2
