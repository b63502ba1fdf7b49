"""Tool results: a message for the model and a value for programs."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from weakincentives.serde import SerdeError, encode

R = TypeVar("R")


@runtime_checkable
class Renderable(Protocol):
    """A value that renders itself for a model."""

    def render(self) -> str:
        """Return the text for the model."""
        ...


@dataclass(frozen=True, slots=True)
class Media:
    """An image or other media for models that accept it."""

    media_type: str
    data: bytes


@dataclass(frozen=True)  # no slots: with them a subscript, `ToolResult[...](...)`, raises
class ToolResult(Generic[R]):
    """The result of a tool call.

    Args:
        message: Text for the model.
        value: The result for programs; None if the call failed.
        success: Whether the call succeeded. If not, its changes are rolled back.
        exclude_value_from_context: Send only the message to the model, not the value.
        media: Images for the model in addition to the text, if it accepts them.
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
        """Return a failure; the message should say what happened and what to do next."""
        return cls(message, None, success=False)

    def render(self) -> str:
        """Return the text for the model: the message, then the value."""
        if self.value is None or self.exclude_value_from_context:
            return self.message
        text = _render_value(self.value)
        return f"{self.message}\n\n{text}" if self.message and text else self.message or text


def _render_value(value: object) -> str:
    if isinstance(value, Renderable):
        return value.render()
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode("utf-8", "replace")
    except SerdeError:
        return str(value)
