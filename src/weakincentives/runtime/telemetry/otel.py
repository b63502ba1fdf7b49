"""Spans by OpenTelemetry: the extra `otel`, imported only by those who ask for it."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from weakincentives import __version__
from weakincentives.runtime.telemetry.tracing import AttributeValue, Span
from weakincentives.serde import encode

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Spans by OpenTelemetry need an extra: pip install 'weakincentives[otel]'",
        name=_error.name,
    ) from _error


__all__ = ["OpenTelemetryTracing"]


class OpenTelemetryTracing:
    """Sends spans to OpenTelemetry; hand it to `use_tracing`."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, record_content: bool = False
    ) -> None:
        """Make spans with a provider.

        Args:
            tracer_provider: What makes them; None is the one that the process has set.
            record_content: Record what users, models and tools said as well: prompts,
                arguments, results, the messages of errors. Whoever reads the spans
                reads these then.
        """
        self._tracer = trace.get_tracer(
            "weakincentives", __version__, tracer_provider=tracer_provider
        )
        self._record_content = record_content

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, AttributeValue], *, remote: bool = False
    ) -> Generator[Span, None, None]:
        """Begin a span inside the current one, whoever began that."""
        with self._tracer.start_as_current_span(
            _text(name),
            kind=SpanKind.CLIENT if remote else SpanKind.INTERNAL,
            attributes={key: _value(value) for key, value in attributes.items()},
            record_exception=False,  # its message would be a content
            set_status_on_exception=False,
        ) as begun:
            span = _OpenTelemetrySpan(begun, self._record_content)
            try:
                yield span
            except BaseException as error:
                span.fail(error)
                raise


class _OpenTelemetrySpan:
    """A span of OpenTelemetry."""

    def __init__(self, span: trace.Span, record_content: bool) -> None:
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
        self.set("error.type", error if isinstance(error, str) else _kind(error))
        said = str(error) if self._record_content and not isinstance(error, str) else None
        self._span.set_status(Status(StatusCode.ERROR, None if said is None else _text(said)))


def _kind(error: BaseException) -> str:
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
    """Return text that can be sent; an exporter fails on half a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()
