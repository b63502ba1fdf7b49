"""OpenTelemetry: real spans of the real SDK."""

import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from weakincentives import __version__
from weakincentives.errors import ToolValidationError
from weakincentives.extras import describe_missing
from weakincentives.runtime import (
    TokenUsage,
    filesystem_span,
    model_span,
    prompt_span,
    record_response,
    record_result,
    start_span,
    tool_span,
    use_tracing,
)
from weakincentives.runtime.telemetry.otel import OpenTelemetryTracing


class Telemetry:
    """A provider whose spans are kept in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """The spans that are over, by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_spans_are_nested_as_the_work_is(telemetry: Telemetry):
    with use_tracing(OpenTelemetryTracing(telemetry.provider)), prompt_span("p"):
        with model_span("m", provider="openai"):
            pass
        with tool_span("write_file"), filesystem_span("commit"):
            pass
    spans = telemetry.spans
    parents = {name: each.parent and each.parent.span_id for name, each in spans.items()}
    ids = {name: each.context.span_id for name, each in spans.items() if each.context}
    assert parents == {
        "invoke_agent p": None,
        "chat m": ids["invoke_agent p"],
        "execute_tool write_file": ids["invoke_agent p"],
        "wink.filesystem.commit": ids["execute_tool write_file"],
    }


def test_spans_of_others_are_above_and_below(telemetry: Telemetry):
    other = telemetry.provider.get_tracer("other")
    with (
        use_tracing(OpenTelemetryTracing(telemetry.provider)),
        other.start_as_current_span("above") as above,
        tool_span("t"),
        other.start_as_current_span("below"),
    ):
        pass
    spans = telemetry.spans
    tool = spans["execute_tool t"]
    assert tool.parent == above.get_span_context()
    assert spans["below"].parent == tool.context
    assert not get_current_span().get_span_context().is_valid


def test_a_model_call_is_that_of_a_client(telemetry: Telemetry):
    with use_tracing(OpenTelemetryTracing(telemetry.provider)):
        with model_span("m", provider="openai") as span:
            record_response(span, usage=TokenUsage(3, 4), finish_reasons=["stop"])
        with tool_span("t"):
            pass
    chat = telemetry.spans["chat m"]
    assert chat.kind is SpanKind.CLIENT
    assert telemetry.spans["execute_tool t"].kind is SpanKind.INTERNAL
    assert attributes(chat) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert chat.status.status_code is StatusCode.UNSET


def everything_said(telemetry: Telemetry, *, record_content: bool) -> None:
    """Trace work in which everything that is said holds the word `secret`."""
    tracing = OpenTelemetryTracing(telemetry.provider, record_content=record_content)
    with use_tracing(tracing), prompt_span("p", text="secret prompt"):
        with model_span("m", provider="openai", messages=[{"content": "secret"}]) as span:
            record_response(span, messages=[{"content": "secret answer"}])
        with tool_span("t", arguments={"text": "secret argument"}) as span:
            error = ToolValidationError("secret value")
            record_result(span, "secret result", success=False, error=error)
        with pytest.raises(OSError, match="secret path"), filesystem_span("commit"):
            raise OSError("secret path")


def test_contents_are_not_recorded_unless_asked_for(telemetry: Telemetry):
    everything_said(telemetry, record_content=False)
    assert len(telemetry.spans) == 4
    assert [each.to_json() for each in telemetry.spans.values() if "secret" in each.to_json()] == []


def test_contents_are_recorded_when_asked_for(telemetry: Telemetry):
    everything_said(telemetry, record_content=True)
    prompt, chat, tool, commit = (
        telemetry.spans[name]
        for name in ("invoke_agent p", "chat m", "execute_tool t", "wink.filesystem.commit")
    )
    assert json.loads(str(attributes(prompt)["gen_ai.system_instructions"])) == [
        {"type": "text", "content": "secret prompt"}
    ]
    assert json.loads(str(attributes(chat)["gen_ai.input.messages"])) == [{"content": "secret"}]
    assert json.loads(str(attributes(chat)["gen_ai.output.messages"])) == [
        {"content": "secret answer"}
    ]
    assert attributes(tool)["gen_ai.tool.call.arguments"] == '{"text":"secret argument"}'
    assert attributes(tool)["gen_ai.tool.call.result"] == "secret result"
    assert tool.status.description == "secret value"
    assert commit.status.description == "secret path"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("x"), "KeyError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ToolValidationError("x"), "weakincentives.errors.ToolValidationError"),
    ],
)
def test_an_exception_is_told_by_its_type(error: BaseException, kind: str, telemetry: Telemetry):
    with (
        pytest.raises(type(error)) as caught,
        use_tracing(OpenTelemetryTracing(telemetry.provider)),
        start_span("a", {}),
    ):
        raise error
    span = telemetry.spans["a"]
    assert caught.value is error
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span) == {"error.type": kind}
    assert span.events == ()


def test_a_failed_result_is_an_error_without_an_exception(telemetry: Telemetry):
    with use_tracing(OpenTelemetryTracing(telemetry.provider)), tool_span("t") as span:
        record_result(span, "no such file", success=False)
    span = telemetry.spans["execute_tool t"]
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "tool_error"


def test_what_no_exporter_can_send_is_made_sendable(telemetry: Telemetry):
    tracing = OpenTelemetryTracing(telemetry.provider, record_content=True)
    with use_tracing(tracing), tool_span("t", call_id="\ud800") as span:
        record_result(span, "\udcff", success=False, error=ValueError("\udcfe"))
        span.set("list", ["\udcfd"])
    span = telemetry.spans["execute_tool t"]
    assert attributes(span)["gen_ai.tool.call.id"] == "\\ud800"
    assert attributes(span)["gen_ai.tool.call.result"] == "\\udcff"
    assert attributes(span)["list"] == ("\\udcfd",)
    assert span.status.description == "\\udcfe"


def test_nothing_is_encoded_for_a_span_that_is_not_sampled(caplog: pytest.LogCaptureFixture):
    tracing = OpenTelemetryTracing(TracerProvider(sampler=ALWAYS_OFF), record_content=True)
    with use_tracing(tracing), tool_span("t", arguments=object()) as span:
        assert not span.is_recording
    assert caplog.records == []  # an object that has no JSON would be told


def test_the_spans_name_the_library_that_made_them(telemetry: Telemetry):
    with use_tracing(OpenTelemetryTracing(telemetry.provider)), tool_span("t"):
        pass
    scope = telemetry.spans["execute_tool t"].instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.version) == ("weakincentives", __version__)


class Full(SpanProcessor):
    """A processor that fails at the end of every span."""

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("No space left on device")


def test_a_processor_that_fails_does_not_fail_the_work(caplog: pytest.LogCaptureFixture):
    provider = TracerProvider()
    provider.add_span_processor(Full())
    with use_tracing(OpenTelemetryTracing(provider)), tool_span("t"):
        pass
    assert "Tracing of 'execute_tool t' failed" in caplog.text
    assert not get_current_span().get_span_context().is_valid


def test_without_a_provider_spans_go_to_that_of_the_process():
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from weakincentives.runtime import tool_span, use_tracing
from weakincentives.runtime.telemetry.otel import OpenTelemetryTracing

tracing = OpenTelemetryTracing()
with use_tracing(tracing), tool_span("before"):
    pass
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with use_tracing(tracing), tool_span("after"):
    pass
print([span.name for span in exporter.get_finished_spans()])
"""
    assert output_of(code) == "['execute_tool after']\n"


def test_a_missing_extra_is_named_in_one_sentence():
    code = """
import sys
sys.modules["opentelemetry"] = None
try:
    import weakincentives.runtime.telemetry.otel
except ImportError as error:
    print(error)
"""
    assert output_of(code) == f"{describe_missing('OpenTelemetry tracing', 'otel')}\n"


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout
