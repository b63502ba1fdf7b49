"""Tool call arguments: the schema that a model reads, lenient coercion, and field aliases.

`concise_schema` leaves out what a model need not read. `coerce` runs only if arguments do not
match the schema. It accepts null for an optional field, and a list sent as a JSON string or as
its only item, or what the field's metadata makes of a string or list (`from_text`, `from_list`).
Numbers and booleans sent as strings are handled by the converter. `FieldAliases`
translates between the names that models use and the names of dataclass fields.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from weakincentives.errors import PromptError
from weakincentives.serde import SerdeError, decode

_HIDDEN = "hidden"


def concise_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's parameters without what a model need not read.

    Left out are null as another way to omit a field, empty defaults, and the description of a
    type where the tool or the field that has this type is described itself.
    """
    result = _concise_object(schema, is_described=True)
    if "$defs" in result:
        result["$defs"] = {
            name: _concise_object(each, is_described=False)
            for name, each in result["$defs"].items()
        }
    return result


def _concise_object(schema: Mapping[str, Any], *, is_described: bool) -> dict[str, Any]:
    dropped = ("description",) if is_described else ()
    result = {key: each for key, each in schema.items() if key not in dropped}
    if "properties" in result:
        result["properties"] = {
            name: _concise_field(each) for name, each in result["properties"].items()
        }
    return result


def _concise_field(schema: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = dict(schema)
    if result.get("default", MISSING) is None and "anyOf" in result:
        options: list[dict[str, Any]] = result.pop("anyOf")
        options = [each for each in options if each != {"type": "null"}]
        result = {**options[0], **result} if len(options) == 1 else {"anyOf": options, **result}
    if result.get("default", MISSING) in (None, [], {}):
        del result["default"]
    if all(isinstance(each, str) for each in result.get("enum", [None])):
        result = {"type": "string", **result}  # some providers reject choices without a type
    if "items" in result:
        result["items"] = _concise_object(result["items"], is_described="description" in result)
    return _concise_object(result, is_described=False)


def coerce(value: object, kind: Any) -> object:
    """Return JSON arguments for the dataclass `kind` with unambiguous mistakes corrected."""
    if not isinstance(value, Mapping) or not is_dataclass(kind):
        return cast("object", value)
    given = cast("Mapping[str, object]", value)
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    return {
        name: _coerce_field(each, hints[name], known[name].metadata) if name in known else each
        for name, each in given.items()
        if each is not None or name not in known or not _null_is_omission(known[name], hints[name])
    }


def _null_is_omission(field: Field[Any], hint: Any) -> bool:
    """Return whether null can only mean that a field is omitted."""
    optional = field.default is not MISSING or field.default_factory is not MISSING
    return optional and NoneType not in _choices(hint)


def _coerce_field(value: object, hint: Any, metadata: Mapping[str, Any]) -> object:
    choices = _choices(hint)
    if "from_list" in metadata and isinstance(value, list):
        words = cast("list[object]", value)
        is_text = all(isinstance(each, str) for each in words)
        return metadata["from_list"](words) if is_text else words
    items = next((get_args(each)[0] for each in choices if _is_list_hint(each)), None)
    if items is None or (isinstance(value, str) and str in choices):
        return value
    found = _parse_list(value, items)
    if found == [value] and "from_text" in metadata:
        return metadata["from_text"](value)
    if not isinstance(found, list | tuple):
        return value
    return [coerce(each, items) for each in cast("list[object]", found)]


def _parse_list(value: object, items: Any) -> object:
    """Return the list that a JSON string or a single item stands for."""
    if isinstance(value, Mapping):
        return [cast("object", value)] if is_dataclass(items) else cast("object", value)
    if not isinstance(value, str):
        return value
    try:
        return decode(value, list[Any])
    except SerdeError:
        return [value] if items is str else value


def _choices(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_list_hint(hint: Any) -> bool:
    origin = get_origin(hint)
    is_collection = isinstance(origin, type) and issubclass(origin, Collection)
    return is_collection and not issubclass(origin, Mapping)


@dataclass(slots=True)
class FieldAliases:
    """Aliases and display names of the fields of one dataclass, and of those nested in its lists.

    Args:
        fields: The names of the fields.
        is_needed: Whether this or a nested dataclass has any alias or display name.
        names: Field names by alias.
        display_names: The names shown to models by field name, where they differ.
        lists: The aliases of the dataclasses nested in each list field.
        hidden: The names of fields that are accepted but not in the schema.
    """

    fields: frozenset[str]
    is_needed: bool = False
    names: dict[str, str] = field(default_factory=dict[str, str])
    display_names: dict[str, str] = field(default_factory=dict[str, str])
    lists: "dict[str, list[FieldAliases]]" = field(default_factory=dict[str, "list[FieldAliases]"])
    hidden: frozenset[str] = frozenset()

    def apply(self, value: object) -> object:
        """Return a JSON object with aliases replaced by field names.

        Raises:
            SerdeError: A field is given under two names with different values.
        """
        if not self.is_needed:
            return value
        try:
            return self._rename_keys(value)
        except RecursionError:
            raise SerdeError("Nested too deeply") from None

    def schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a JSON schema with display names instead of field names, without hidden fields."""
        result = dict(schema)
        if "properties" in schema:
            result["properties"] = {
                self.display_names.get(name, name): _list_schema(each, self.lists.get(name, ()))
                for name, each in schema["properties"].items()
                if name not in self.hidden
            }
        if "required" in schema:
            result["required"] = [self.display_names.get(name, name) for name in schema["required"]]
        return result

    def translate(self, message: str) -> str:
        """Return an error message with field names replaced by display names."""
        seen: list[FieldAliases] = []
        pending: list[FieldAliases] = [self]
        while pending:
            each = pending.pop()
            if not any(each is other for other in seen):
                seen.append(each)
                pending += (inner for nested in each.lists.values() for inner in nested)
        for name, display_name in (pair for each in seen for pair in each.display_names.items()):
            pattern = rf"(?<=['.]){name}(?=['.\[])|(?<=required field ){name}\b"
            message = re.sub(pattern, display_name.replace("\\", r"\\"), message)
        return message

    def _rename_keys(self, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        given = cast("Mapping[str, object]", value)
        result: dict[str, object] = {}
        keys: dict[str, str] = {}
        for key, each in given.items():
            name = self.names.get(key, key)
            if name in result and result[name] != each:
                raise SerdeError(
                    f"{keys[name]!r} and {key!r} are aliases with different values;"
                    f" send only {name!r}"
                )
            result[name], keys[name] = each, key
        for name, nested in self.lists.items():
            if name in result:
                result[name] = _rename_in_list(result[name], nested)
        return result


def field_aliases(kind: type[Any] | None, aliases: Mapping[str, str], tool: str) -> FieldAliases:
    """Return the aliases of a tool's parameters, the dataclass `kind`.

    Raises:
        PromptError: An alias is also a field name, or names an unknown field, or a hidden field has
            no default.
    """
    seen: dict[Any, FieldAliases] = {}
    found = FieldAliases(frozenset()) if kind is None else _collect_aliases(kind, aliases, seen)
    known = found.fields.union(*(each.fields for each in seen.values()))
    for alias, name in aliases.items():
        if alias in known:
            raise PromptError(f"Alias of tool {tool!r} is also a field name: {alias!r}")
        if name not in known:
            raise PromptError(f"Alias {alias!r} of tool {tool!r} names an unknown field: {name!r}")
    for each in seen.values():
        each.is_needed = any(other.names for other in seen.values())
    return found


def display_names(kind: type[Any]) -> Mapping[str, str]:
    """Return the display names of a dataclass's fields, where they differ from the field names."""
    return {each.name: each.metadata["name"] for each in fields(kind) if "name" in each.metadata}


def _collect_aliases(
    kind: Any, aliases: Mapping[str, str], seen: dict[Any, FieldAliases]
) -> FieldAliases:
    if kind in seen:
        return seen[kind]
    plain = get_origin(kind) or kind
    names = frozenset(each.name for each in fields(plain))
    found = seen[kind] = FieldAliases(names, hidden=_hidden_fields(plain))
    found.names.update((alias, name) for alias, name in aliases.items() if name in found.fields)
    found.display_names.update(display_names(plain))
    found.names.update((display, name) for name, display in found.display_names.items())
    for name, hint in get_type_hints(plain).items():
        nested = [
            _collect_aliases(each, aliases, seen) for each in _item_types(hint, in_list=False)
        ]
        if nested and name in found.fields:
            found.lists[name] = nested
    return found


def _hidden_fields(kind: type[Any]) -> frozenset[str]:
    hidden = [each for each in fields(kind) if each.metadata.get(_HIDDEN)]
    for each in hidden:
        if each.default is MISSING and each.default_factory is MISSING:
            raise PromptError(f"Hidden field needs a default: {each.name!r} of {kind.__name__}")
    return frozenset(each.name for each in hidden)


def _item_types(hint: Any, *, in_list: bool) -> Iterator[Any]:
    """Yield the dataclasses that may be items of the lists in a type."""
    origin = get_origin(hint)
    if in_list and is_dataclass(origin or hint):
        yield hint
    elif origin in (Union, UnionType):
        for each in get_args(hint):
            yield from _item_types(each, in_list=in_list)
    elif _is_list_hint(hint):
        for each in get_args(hint):
            yield from _item_types(each, in_list=True)


def _rename_in_list(value: object, nested: list[FieldAliases]) -> object:
    if not isinstance(value, list | tuple):
        return value
    items: list[object] = []
    for each in cast("list[object]", value):
        for aliases in nested:
            each = aliases.apply(each)
        items.append(_rename_in_list(each, nested))
    return items


def _list_schema(schema: Mapping[str, Any], nested: Sequence[FieldAliases]) -> dict[str, Any]:
    """Return the schema of a list with display names in the objects that it may contain."""
    result = dict(schema)
    for aliases in nested:
        if "items" in result:
            result["items"] = aliases.schema(_list_schema(result["items"], nested))
        if "anyOf" in result:
            result["anyOf"] = [_list_schema(each, nested) for each in result["anyOf"]]
    return result
