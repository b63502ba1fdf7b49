"""OpenTelemetry tracing (the extra `otel`); import it explicitly."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from weakincentives import __version__
from weakincentives.extras import needs_extra
from weakincentives.runtime.telemetry.tracing import AttributeValue, Span
from weakincentives.serde import encode

with needs_extra("OpenTelemetry tracing", "otel"):
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider


__all__ = ["OpenTelemetryTracing"]


class OpenTelemetryTracing:
    """Sends spans to OpenTelemetry; pass it to `use_tracing`."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, record_content: bool = False
    ) -> None:
        """Create spans with a tracer provider.

        Args:
            tracer_provider: The provider; by default the global one of the process.
            record_content: Also record content: prompts, arguments, results and error
                messages. Whoever can read the spans can then read it.
        """
        self._tracer = trace.get_tracer(
            "weakincentives", __version__, tracer_provider=tracer_provider
        )
        self._record_content = record_content

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> Generator[Span, None, None]:
        """Start a span as a child of OpenTelemetry's current span."""
        with self._tracer.start_as_current_span(
            _text(name),
            kind=SpanKind.CLIENT if remote else SpanKind.INTERNAL,
            attributes={key: _value(value) for key, value in attributes.items()},
            record_exception=False,  # its message is content
            set_status_on_exception=False,
        ) as started:
            span = _OpenTelemetrySpan(started, record_content=self._record_content)
            try:
                yield span
            except BaseException as error:
                span.fail(error)
                raise


class _OpenTelemetrySpan:
    """An OpenTelemetry span."""

    def __init__(self, span: trace.Span, *, record_content: bool) -> None:
        self._span = span
        self._record_content = record_content
        self.is_recording = span.is_recording()

    def set(self, name: str, value: AttributeValue) -> None:
        self._span.set_attribute(name, _value(value))

    def content(self, name: str, value: object) -> None:
        if self._record_content and self.is_recording:
            self.set(
                name, value if isinstance(value, str) else encode(value).decode("utf-8", "replace")
            )

    def fail(self, error: BaseException | str) -> None:
        self.set("error.type", error if isinstance(error, str) else _error_type(error))
        message = str(error) if self._record_content and not isinstance(error, str) else None
        description = None if message is None else _text(message)
        self._span.set_status(Status(StatusCode.ERROR, description))


def _error_type(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return value
    return [_text(each) for each in value]


def _text(text: str) -> str:
    """Return encodable text: exporters fail on a lone surrogate."""
    return text.encode(errors="backslashreplace").decode()
