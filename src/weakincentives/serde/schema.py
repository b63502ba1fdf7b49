"""What a dataclass says about itself: its description, and one for each field."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import cleandoc
from typing import Any, cast, get_origin

import msgspec
from msgspec import inspect

from weakincentives.serde.validation import SerdeError, json_schema_of

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Fields):$")
_HEADING = re.compile(r"^[A-Z]\w*:$")
_ENTRY = re.compile(r"^(\w+)(?: ?\([^)]*\))?:\s*(.*)$")


def description(kind: type[Any]) -> str:
    """Return the docstring of `kind` without its sections; empty where Python wrote it."""
    paragraphs: list[str] = []
    for block in _docstring(kind).split("\n\n"):
        if _HEADING.match(block.split("\n", 1)[0]):
            break
        paragraphs.append(" ".join(block.split()))
    return "\n\n".join(paragraphs)


def field_descriptions(kind: type[Any]) -> Mapping[str, str]:
    """Return what the metadata, or else the docstrings, say about the fields of `kind`.

    A docstring says it in an `Args:` or `Attributes:` section; a class without an
    entry for an inherited field takes it from the base that has one.
    """
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found.update(_entries(_docstring(each)))
    for field in fields(kind):
        said = field.metadata.get("description")
        if said is not None:
            found[field.name] = str(said)
    return {field.name: found[field.name] for field in fields(kind) if field.name in found}


def _docstring(kind: type[Any]) -> str:
    text = vars(kind).get("__doc__") or ""
    # a dataclass without a docstring is given its signature
    return "" if text.startswith(f"{kind.__name__}(") else cleandoc(text)


def _entries(docstring: str) -> dict[str, str]:
    """Return the entries of the section about fields; an entry may span lines."""
    found: dict[str, list[str]] = {}
    inside, name = False, ""
    for line in docstring.split("\n"):
        if line and not line.startswith(" "):
            inside, name = _SECTION.match(line) is not None, ""
        elif inside and line:
            entry = None if line.startswith("     ") else _ENTRY.match(line.strip())
            if entry:
                name = entry.group(1)
                found[name] = [entry.group(2)]
            elif name:
                found[name].append(line.strip())
    return {each: " ".join(filter(None, lines)) for each, lines in found.items()}


_REFERENCE = "#/$defs/"


def json_schema(kind: Any) -> dict[str, object]:
    """Return the JSON schema of `kind`.

    Fields are described by `field(metadata={"description": ...})`, or by the `Args:` or
    `Attributes:` section of the class's docstring. Unknown fields are forbidden.

    Raises:
        SerdeError: A type in it has no JSON schema.
    """
    try:
        classes = list(_dataclasses(inspect.type_info(kind), set()))
        schemas, definitions = msgspec.json.schema_components(
            (*classes, kind), schema_hook=json_schema_of, ref_template=_REFERENCE + "{name}"
        )
    except (TypeError, NameError) as error:
        raise SerdeError(f"No JSON schema: {error}") from error
    for definition in definitions.values():
        definition.pop("title", None)
    for cls, schema in zip(classes, schemas, strict=False):
        _describe(definitions[_target(schema)], cls)
    return _whole(schemas[-1], definitions)


def _dataclasses(info: inspect.Type, seen: set[Any]) -> Iterator[Any]:
    """Yield each dataclass that a type contains, once."""
    inner: tuple[inspect.Type, ...] = ()
    match info:
        case inspect.DataclassType(cls=cls, fields=fields):
            if cls not in seen:
                seen.add(cls)
                yield cls
                inner = tuple(each.type for each in fields)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            inner = types
        case inspect.CollectionType(item_type=item) | inspect.Metadata(type=item):
            inner = (item,)
        case inspect.DictType(value_type=item):
            inner = (item,)
        case _:
            pass
    for each in inner:
        yield from _dataclasses(each, seen)


def _describe(schema: dict[str, Any], cls: Any) -> None:
    """Add what the class says, and forbid what it does not have."""
    plain = get_origin(cls) or cls
    schema.pop("description", None)
    said = description(plain)
    if said:
        schema["description"] = said
    for name, text in field_descriptions(plain).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = text
    schema["additionalProperties"] = False


def _whole(schema: Mapping[str, Any], definitions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with all that it refers to in its place."""
    apart = {name for name in definitions if name in _reached(definitions[name], definitions)}
    top = definitions[_target(schema)] if "$ref" in schema else schema
    made = cast("dict[str, Any]", _inlined(top, definitions, apart))
    if apart:
        made["$defs"] = {
            name: _inlined(definitions[name], definitions, apart) for name in sorted(apart)
        }
    return made


def _inlined(node: Any, definitions: Mapping[str, dict[str, Any]], apart: set[str]) -> Any:
    """Return a node of a schema with definitions in place of references to them."""
    if isinstance(node, list | tuple):
        return [_inlined(each, definitions, apart) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("dict[str, Any]", node)
    if "$ref" in schema and _target(schema) not in apart:
        # what a field says about itself goes before what its type says
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions[_target(schema)], **beside}
    return {key: _inlined(value, definitions, apart) for key, value in schema.items()}


def _reached(schema: object, definitions: Mapping[str, dict[str, Any]]) -> set[str]:
    """Return the names that a schema refers to, directly or through others."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | tuple):
            waiting.extend(cast("list[object]", node))
        elif isinstance(node, dict):
            named = cast("dict[str, object]", node)
            waiting.extend(named.values())
            if "$ref" in named and _target(named) not in found:
                found.add(_target(named))
                waiting.append(definitions[_target(named)])
    return found


def _target(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix(_REFERENCE)
