"""Slips of models in the arguments of a call, and what they mean.

Looked at only where arguments are not what the schema says: null for a field that may be
left out, a list as a text of JSON or as its only item. Numbers and truth values that are
sent as texts are the converter's to read.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from weakincentives.errors import PromptError
from weakincentives.serde import SerdeError, decode


def coerce(value: object, kind: Any) -> object:
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
    items = next((get_args(each)[0] for each in choices if _is_list_hint(each)), None)
    if items is None or (isinstance(value, str) and str in choices):
        return value
    found = _as_list(value, items)
    if not isinstance(found, list | tuple):
        return value
    return [coerce(each, items) for each in cast("list[object]", found)]


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


def _is_list_hint(hint: Any) -> bool:
    origin = get_origin(hint)
    is_collection = isinstance(origin, type) and issubclass(origin, Collection)
    return is_collection and not issubclass(origin, Mapping)


@dataclass(slots=True)
class FieldAliases:
    """What is called otherwise in the objects of one dataclass, and where others are inside."""

    fields: frozenset[str]
    is_needed: bool = False
    names: dict[str, str] = field(default_factory=dict[str, str])
    shown: dict[str, str] = field(default_factory=dict[str, str])
    lists: "dict[str, list[FieldAliases]]" = field(default_factory=dict[str, "list[FieldAliases]"])

    def apply(self, value: object) -> object:
        """Return `value`, the JSON of such an object, with the names that its fields have.

        Raises:
            SerdeError: A field is given under two names, with two values.
        """
        if not self.is_needed:
            return value
        try:
            return self._renamed(value)
        except RecursionError:
            raise SerdeError("Nested too deeply") from None

    def schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a JSON schema of such objects with the names that their fields are shown by."""
        made = dict(schema)
        if "properties" in schema:
            made["properties"] = {
                self.shown.get(name, name): _inside_list(each, self.lists.get(name, ()))
                for name, each in schema["properties"].items()
            }
        if "required" in schema:
            made["required"] = [self.shown.get(name, name) for name in schema["required"]]
        return made

    def told(self, sentence: str) -> str:
        """Return a sentence about such objects with the names that their fields are shown by."""
        seen: list[FieldAliases] = []
        waiting: list[FieldAliases] = [self]
        while waiting:
            each = waiting.pop()
            if not any(each is other for other in seen):
                seen.append(each)
                waiting += (inner for several in each.lists.values() for inner in several)
        for name, shown in (pair for each in seen for pair in each.shown.items()):
            place = rf"(?<=['.]){name}(?=['.\[])|(?<=required field ){name}\b"
            sentence = re.sub(place, shown.replace("\\", r"\\"), sentence)
        return sentence

    def _renamed(self, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        given = cast("Mapping[str, object]", value)
        made: dict[str, object] = {}
        called: dict[str, str] = {}
        for key, each in given.items():
            name = self.names.get(key, key)
            if name in made and made[name] != each:
                raise SerdeError(
                    f"Fields {called[name]!r} and {key!r} are the same and differ,"
                    f" give {name!r} only"
                )
            made[name], called[name] = each, key
        for name, inner in self.lists.items():
            if name in made:
                made[name] = _in_list(made[name], inner)
        return made


def field_aliases(kind: type[Any] | None, aliases: Mapping[str, str], tool: str) -> FieldAliases:
    """Return how the arguments of a tool, a `kind`, are renamed.

    Raises:
        PromptError: An alias is the name of a field, or stands for no field.
    """
    seen: dict[Any, FieldAliases] = {}
    made = FieldAliases(frozenset()) if kind is None else _renaming(kind, aliases, seen)
    known = made.fields.union(*(each.fields for each in seen.values()))
    for alias, name in aliases.items():
        if alias in known:
            raise PromptError(f"Alias of tool {tool!r} is the name of a field: {alias!r}")
        if name not in known:
            raise PromptError(f"Alias {alias!r} of tool {tool!r} stands for no field: {name!r}")
    for each in seen.values():
        each.is_needed = any(other.names for other in seen.values())
    return made


def display_names(kind: type[Any]) -> Mapping[str, str]:
    """Return the names that the fields of a dataclass are shown by, where these are others."""
    return {each.name: each.metadata["name"] for each in fields(kind) if "name" in each.metadata}


def _renaming(kind: Any, aliases: Mapping[str, str], seen: dict[Any, FieldAliases]) -> FieldAliases:
    if kind in seen:
        return seen[kind]
    plain = get_origin(kind) or kind
    made = seen[kind] = FieldAliases(frozenset(each.name for each in fields(plain)))
    made.names.update((alias, name) for alias, name in aliases.items() if name in made.fields)
    made.shown.update(display_names(plain))
    made.names.update((shown, name) for name, shown in made.shown.items())
    for name, hint in get_type_hints(plain).items():
        inner = [_renaming(each, aliases, seen) for each in _items(hint, inside=False)]
        if inner and name in made.fields:
            made.lists[name] = inner
    return made


def _items(hint: Any, *, inside: bool) -> Iterator[Any]:
    """Yield the dataclasses of the objects in the lists that a type allows."""
    origin = get_origin(hint)
    if inside and is_dataclass(origin or hint):
        yield hint
    elif origin in (Union, UnionType):
        for each in get_args(hint):
            yield from _items(each, inside=inside)
    elif _is_list(origin):
        for each in get_args(hint):
            yield from _items(each, inside=True)


def _is_list(origin: Any) -> bool:
    return (
        isinstance(origin, type)
        and issubclass(origin, Collection)
        and not issubclass(origin, Mapping)
    )


def _in_list(value: object, inner: list[FieldAliases]) -> object:
    if not isinstance(value, list | tuple):
        return value
    items: list[object] = []
    for each in cast("list[object]", value):
        for how in inner:
            each = how.apply(each)
        items.append(_in_list(each, inner))
    return items


def _inside_list(schema: Mapping[str, Any], inner: Sequence[FieldAliases]) -> dict[str, Any]:
    """Return the schema of a list with the shown names in the objects that it may hold."""
    made = dict(schema)
    for how in inner:
        if "items" in made:
            made["items"] = how.schema(_inside_list(made["items"], inner))
        if "anyOf" in made:
            made["anyOf"] = [_inside_list(each, inner) for each in made["anyOf"]]
    return made
