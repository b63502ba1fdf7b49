"""Structured output as Anthropic's API can see to it: not every schema is one that it takes."""

from collections.abc import Mapping
from typing import Any

from anthropic import transform_schema

from weakincentives.adapters import wire
from weakincentives.adapters.conversation import OutputFormat

_REF = "#/$defs/"


def output_format(output: OutputFormat) -> dict[str, Any] | None:
    """Return what the API is sent, or None if it would not take, or not mean, the same.

    Objects whose names are not known, types that hold themselves, and values of any type
    cannot be said.
    """
    if not _is_sayable(output.schema, wire.mapping(output.schema.get("$defs")), ()):
        return None
    return {"type": "json_schema", "schema": transform_schema(dict(output.schema))}


def _is_sayable(node: object, defs: Mapping[str, Any], inside: tuple[str, ...]) -> bool:
    """Return whether a schema keeps its meaning; `inside` are the definitions around it."""
    schema = wire.mapping(node)
    ref = wire.text(schema.get("$ref"))
    if ref:
        name = ref.removeprefix(_REF)
        return name not in inside and _is_sayable(defs.get(name), defs, (*inside, name))
    if "enum" in schema or "const" in schema:
        return True
    if "anyOf" in schema:
        return all(_is_sayable(each, defs, inside) for each in wire.items(schema["anyOf"]))
    if schema.get("type") == "object":
        properties = wire.mapping(schema.get("properties")).values()
        is_closed = schema.get("additionalProperties") is False
        return is_closed and all(_is_sayable(each, defs, inside) for each in properties)
    if schema.get("type") == "array":
        return "prefixItems" not in schema and _is_sayable(schema.get("items"), defs, inside)
    return isinstance(schema.get("type"), str)
