"""JSON schemas of dataclasses, with descriptions from docstrings and field metadata."""

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
_REFERENCE = "#/$defs/"


def description(kind: type[Any]) -> str:
    """Return the docstring of `kind` without its sections; empty if Python generated it."""
    paragraphs: list[str] = []
    for block in _own_doc(kind).split("\n\n"):
        if _HEADING.match(block.split("\n", 1)[0]):
            break
        paragraphs.append(" ".join(block.split()))
    return "\n\n".join(paragraphs)


def field_descriptions(kind: type[Any]) -> Mapping[str, str]:
    """Return the descriptions of the fields of `kind`, from their metadata or docstrings.

    A docstring describes fields in an `Args:` or `Attributes:` section. An inherited field that
    the class does not describe has the description of its base.
    """
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found.update(_parse_entries(_own_doc(each)))
    for field in fields(kind):
        text = field.metadata.get("description")
        if text is not None:
            found[field.name] = str(text)
    return {field.name: found[field.name] for field in fields(kind) if field.name in found}


def _own_doc(kind: type[Any]) -> str:
    text = vars(kind).get("__doc__") or ""
    # the generated docstring of a dataclass is its signature
    return "" if text.startswith(f"{kind.__name__}(") else cleandoc(text)


def _parse_entries(docstring: str) -> dict[str, str]:
    """Return the entries of the section that describes fields; an entry may span lines."""
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


def json_schema(kind: Any) -> dict[str, object]:
    """Return the JSON schema of `kind`.

    Descriptions of fields come from `field(metadata={"description": ...})`, or from the `Args:`
    or `Attributes:` section of the class's docstring. Unknown fields are forbidden.

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
    return _inline(schemas[-1], definitions)


def _dataclasses(info: inspect.Type, seen: set[Any]) -> Iterator[Any]:
    """Yield each dataclass in a type, once."""
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
    """Add the descriptions of a class, and forbid unknown fields."""
    plain = get_origin(cls) or cls
    schema.pop("description", None)
    text = description(plain)
    if text:
        schema["description"] = text
    for name, text in field_descriptions(plain).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = text
    schema["additionalProperties"] = False


def _inline(schema: Mapping[str, Any], definitions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with references inlined; only recursive definitions stay in `$defs`."""
    recursive = {
        name for name in definitions if name in _find_references(definitions[name], definitions)
    }
    top = definitions[_target(schema)] if "$ref" in schema else schema
    result = cast("dict[str, Any]", _inline_node(top, definitions, recursive))
    if recursive:
        result["$defs"] = {
            name: _inline_node(definitions[name], definitions, recursive)
            for name in sorted(recursive)
        }
    return result


def _inline_node(node: Any, definitions: Mapping[str, dict[str, Any]], recursive: set[str]) -> Any:
    """Return a node of a schema with references replaced by their definitions."""
    if isinstance(node, list | tuple):
        return [_inline_node(each, definitions, recursive) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("dict[str, Any]", node)
    if "$ref" in schema and _target(schema) not in recursive:
        # the description of a field takes precedence over that of its type
        overrides = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions[_target(schema)], **overrides}
    return {key: _inline_node(value, definitions, recursive) for key, value in schema.items()}


def _find_references(schema: object, definitions: Mapping[str, dict[str, Any]]) -> set[str]:
    """Return the names that a schema refers to, directly or indirectly."""
    found: set[str] = set()
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list | tuple):
            pending.extend(cast("list[object]", node))
        elif isinstance(node, dict):
            mapping = cast("dict[str, object]", node)
            pending.extend(mapping.values())
            if "$ref" in mapping and _target(mapping) not in found:
                found.add(_target(mapping))
                pending.append(definitions[_target(mapping)])
    return found


def _target(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).removeprefix(_REFERENCE)
