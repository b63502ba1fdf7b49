"""What a tool call came to: a message for the model, and a value for programs."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from weakincentives.serde import SerdeError, encode

R = TypeVar("R")


@runtime_checkable
class Renderable(Protocol):
    """A value that knows how it is shown to a model."""

    def render(self) -> str:
        """Return the text."""
        ...


@dataclass(frozen=True, slots=True)
class Media:
    """Something to look at; it is handed to models that can."""

    media_type: str
    data: bytes


@dataclass(frozen=True)  # no slots: with them a subscript, `ToolResult[...](...)`, raises
class ToolResult(Generic[R]):
    """What a tool call came to.

    Args:
        message: What the model is told.
        value: What the call produced, for programs; None if it failed.
        success: Whether it did what was asked. If not, whatever it changed is undone.
        exclude_value_from_context: Keep the value from the model; the message says enough.
        media: Pictures that the model is shown beside the text, if it can see.
    """

    message: str
    value: R | None = None
    success: bool = True
    exclude_value_from_context: bool = False
    media: tuple[Media, ...] = ()

    @classmethod
    def ok(cls, value: R, message: str = "") -> "ToolResult[R]":
        """Return a success."""
        return cls(message, value)

    @classmethod
    def error(cls, message: str) -> "ToolResult[Any]":
        """Return a failure; the message says what happened and what to do next."""
        return cls(message, None, success=False)

    def render(self) -> str:
        """Return the text for the model: the message, then the value."""
        if self.value is None or self.exclude_value_from_context:
            return self.message
        shown = _as_text(self.value)
        return f"{self.message}\n\n{shown}" if self.message and shown else self.message or shown


def _as_text(value: object) -> str:
    if isinstance(value, Renderable):
        return value.render()
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode("utf-8", "replace")
    except SerdeError:
        return str(value)
