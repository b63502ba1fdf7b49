"""The types that msgspec does not know: paths and read-only mappings."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast


def to_json_value(value: object) -> object:
    """Return what stands for `value` in JSON.

    Raises:
        TypeError: Nothing does.
    """
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"No JSON for type {type(value).__qualname__!r}")


def from_json_value(kind: type[Any], value: object) -> object:
    """Return `value` as a `kind` that msgspec does not know.

    Raises:
        ValueError: It cannot be one.
    """
    if isinstance(value, str) and issubclass(kind, PurePath):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"Expected `{kind.__qualname__}`, got `{type(value).__qualname__}`")


def json_schema_of(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know.

    Raises:
        TypeError: There is none.
    """
    if issubclass(kind, PurePath):
        return {"type": "string"}
    if kind is object:
        return {"type": ["array", "boolean", "null", "number", "object", "string"]}
    raise TypeError(f"no way to describe the type {kind.__qualname__!r}")
