"""The types that msgspec does not know: paths and read-only mappings."""

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


_PLACE = re.compile(r" - at (?:`key` in )?`\$(.*)`$", re.DOTALL)
_VALUE_LENGTH = 80


class SerdeError(WinkError, ValueError):
    """A value cannot become JSON, or data is not what its type asks for."""

    problems: tuple[str, ...]
    """One sentence for each thing that is wrong; never empty."""

    def __init__(self, *problems: str) -> None:
        """Join `problems` into one message."""
        super().__init__("; ".join(problems))
        self.problems = problems


def validation_error(value: object, kind: Any, fault: Exception) -> SerdeError:
    """Return why `value` is no `kind`: for a dataclass field by field, else what `fault` says."""
    if isinstance(value, Mapping) and _is_dataclass(kind):
        found = tuple(_field_problems(cast("Mapping[object, object]", value), kind))
        if found:
            return SerdeError(*found)
    return SerdeError(_sentence(str(fault), "", cast("object", value), kind))


def unknown_field(name: object, known: Iterable[str], place: str) -> str:
    """Return the sentence about a field that the type does not have."""
    alike = get_close_matches(str(name), list(known), n=1)
    hint = f", did you mean {alike[0]!r}?" if alike else ""
    return f"Unknown field {_joined(place, str(name))!r}{hint}"


def _field_problems(value: Mapping[object, object], kind: Any) -> Iterator[str]:
    known = {each.name: each for each in fields(kind)}
    hints = get_type_hints(kind)
    for name in value:
        if name not in known:
            yield unknown_field(name, known, "")
    for name, field in known.items():
        if name in value:
            yield from _value_problems(value[name], hints[name], name)
        elif _is_required(field):
            yield f"Missing field {name!r}"


def _value_problems(value: object, kind: Any, place: str) -> Iterator[str]:
    try:
        msgspec.convert(value, kind, dec_hook=from_json_value, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as fault:
        yield _sentence(str(fault), place, value, kind)


def _sentence(text: str, place: str, value: object, kind: Any) -> str:
    """Return msgspec's message as one of ours: the place, the fact, the value."""
    found = _PLACE.search(text)
    inner = found.group(1) if found else ""
    fact = _PLACE.sub("", text).replace("`", "")
    where = _joined(place, inner)
    if inner:
        return f"Field {where!r}: {_lowered(fact)}"
    choices = _choices(kind)
    if choices and fact.startswith("Invalid enum value"):
        fact = f"{fact.replace('Invalid enum value', 'invalid value')}, expected {choices}"
    elif not where:
        return fact
    elif fact.startswith("Expected"):
        fact = f"{fact}: {_shown(value)}"
    return f"Field {where!r}: {_lowered(fact)}" if where else fact


def _choices(kind: Any) -> str:
    """Return the values that a `Literal` or an enumeration allows, through `| None`."""
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(repr(each) for each in get_args(kind))
    if origin in (Union, types.UnionType):
        return ", ".join(filter(None, map(_choices, get_args(kind))))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(repr(each.value) for each in kind)
    return ""


def _is_dataclass(kind: Any) -> bool:
    # hints of a parametrized dataclass still hold type variables
    return isinstance(kind, type) and is_dataclass(kind)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _joined(place: str, name: str) -> str:
    if name.startswith("["):
        return place + name
    name = name.removeprefix(".")
    return f"{place}.{name}" if place and name else place or name


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}..."
