"""Validation errors in plain sentences, and the types that msgspec does not support.

Each message names the field, states the problem and shows the value. Paths and read-only mappings
are converted by hooks.
"""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from weakincentives.errors import WinkError

_PATH = re.compile(r" - at (?:`key` in )?`\$(.*)`$", re.DOTALL)
_MAX_VALUE_LENGTH = 80
_NEAR = 0.8  # "path" and "pattern" are not: such a hint would mislead


def to_json_value(value: object) -> object:
    """Return the JSON representation of a value that msgspec does not support.

    Raises:
        TypeError: It has none.
    """
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"Type {type(value).__qualname__!r} cannot be encoded as JSON")


def from_json_value(kind: type[Any], value: object) -> object:
    """Convert `value` to a `kind` that msgspec does not support.

    Raises:
        ValueError: It cannot be converted.
    """
    if isinstance(value, str) and issubclass(kind, PurePath):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"Expected `{kind.__qualname__}`, got `{type(value).__qualname__}`")


def json_schema_of(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of a type that msgspec does not support.

    Raises:
        TypeError: It has none.
    """
    if issubclass(kind, PurePath):
        return {"type": "string"}
    if kind is object:
        return {"type": ["array", "boolean", "null", "number", "object", "string"]}
    raise TypeError(f"type {kind.__qualname__!r} is not supported")


class SerdeError(WinkError, ValueError):
    """A value cannot be encoded as JSON, or data does not match its type."""

    problems: tuple[str, ...]
    """One sentence for each problem; never empty."""

    def __init__(self, *problems: str) -> None:
        """Join `problems` into one message."""
        super().__init__("; ".join(problems))
        self.problems = problems


def validation_error(value: object, kind: Any, fault: Exception) -> SerdeError:
    """Return why `value` does not match `kind`: field by field for a dataclass, else `fault`."""
    if isinstance(value, Mapping) and _is_dataclass(kind):
        found = tuple(_find_field_problems(cast("Mapping[object, object]", value), kind))
        if found:
            return SerdeError(*found)
    return SerdeError(_format_problem(str(fault), "", cast("object", value), kind))


def unknown_field(name: object, known: Iterable[str], path: str) -> str:
    """Return the message about a field that the type does not have."""
    similar = get_close_matches(str(name), list(known), n=1, cutoff=_NEAR)
    hint = f", did you mean {similar[0]!r}?" if similar else ""
    return f"Unknown field {_join_path(path, str(name))!r}{hint}"


def _find_field_problems(value: Mapping[object, object], kind: Any) -> Iterator[str]:
    known = {each.name: each for each in fields(kind)}
    hints = get_type_hints(kind)
    for name in value:
        if name not in known:
            yield unknown_field(name, known, "")
    for name, field in known.items():
        if name in value:
            yield from _find_value_problems(value[name], hints[name], name)
        elif _is_required(field):
            yield f"Missing field {name!r}"


def _find_value_problems(value: object, kind: Any, path: str) -> Iterator[str]:
    try:
        msgspec.convert(value, kind, dec_hook=from_json_value, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as fault:
        yield _format_problem(str(fault), path, value, kind)


def _format_problem(text: str, path: str, value: object, kind: Any) -> str:
    """Return msgspec's message in our form: the field, the fact, the value."""
    found = _PATH.search(text)
    inner = found.group(1) if found else ""
    fact = _PATH.sub("", text).replace("`", "")
    field_path = _join_path(path, inner)
    if inner:
        return f"Field {field_path!r}: {_lower_first(fact)}"
    choices = _choices(kind)
    if choices and fact.startswith("Invalid enum value"):
        fact = f"{fact.replace('Invalid enum value', 'invalid value')}, expected {choices}"
    elif not field_path:
        return fact
    elif fact.startswith("Expected"):
        fact = f"{fact}: {_format_value(value)}"
    return f"Field {field_path!r}: {_lower_first(fact)}" if field_path else fact


def _choices(kind: Any) -> str:
    """Return the values that a `Literal` or an enum allows, also in a union with None."""
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(repr(each) for each in get_args(kind))
    if origin in (Union, types.UnionType):
        return ", ".join(filter(None, map(_choices, get_args(kind))))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(repr(each.value) for each in kind)
    return ""


def _is_dataclass(kind: Any) -> bool:
    # the type hints of a parametrized dataclass still contain type variables
    return isinstance(kind, type) and is_dataclass(kind)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _join_path(path: str, name: str) -> str:
    if name.startswith("["):
        return path + name
    name = name.removeprefix(".")
    return f"{path}.{name}" if path and name else path or name


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _format_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."
