"""Slips of models in the arguments of a call, and what they mean.

Looked at only where arguments are not what the schema says: null for a field that may be
left out, a list as a text of JSON or as its only item. Numbers and truth values that are
sent as texts are the converter's to read.
"""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from weakincentives.serde import SerdeError, decode


def meant(value: object, kind: Any) -> object:
    """Return the JSON of a `kind` without slips, as far as they are clear."""
    if not isinstance(value, Mapping) or not is_dataclass(kind):
        return cast("object", value)
    given = cast("Mapping[str, object]", value)
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    return {
        name: _meant_field(each, hints[name]) if name in known else each
        for name, each in given.items()
        if each is not None or name not in known or not _may_be_left_out(known[name], hints[name])
    }


def _may_be_left_out(field: Field[Any], hint: Any) -> bool:
    """Whether null can only mean that a field is left out."""
    optional = field.default is not MISSING or field.default_factory is not MISSING
    return optional and NoneType not in _choices(hint)


def _meant_field(value: object, hint: Any) -> object:
    choices = _choices(hint)
    items = next((get_args(each)[0] for each in choices if _is_list(each)), None)
    if items is None or (isinstance(value, str) and str in choices):
        return value
    found = _as_list(value, items)
    if not isinstance(found, list | tuple):
        return value
    return [meant(each, items) for each in cast("list[object]", found)]


def _as_list(value: object, items: Any) -> object:
    """Return the list that was meant by what is none."""
    if isinstance(value, Mapping):
        return [cast("object", value)] if is_dataclass(items) else cast("object", value)
    if not isinstance(value, str):
        return value
    try:
        return decode(value, list[Any])
    except SerdeError:
        return [value] if items is str else value


def _choices(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_list(hint: Any) -> bool:
    origin = get_origin(hint)
    is_collection = isinstance(origin, type) and issubclass(origin, Collection)
    return is_collection and not issubclass(origin, Mapping)
