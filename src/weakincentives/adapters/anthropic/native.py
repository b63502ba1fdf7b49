"""Tools that Claude was trained on, and that Anthropic's API knows by a type of their own.

Such a tool is sent without a schema and without a description. It is still ours to run, and
so what it does here is told to the model elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anthropic import transform_schema

from weakincentives.adapters.http import lenient
from weakincentives.adapters.messages import OutputFormat, ToolDefinition


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a model sends to one of these tools."""

    type: str
    parameters: frozenset[str]
    always: frozenset[str]
    """Parameters that every call has."""
    commands: frozenset[str] = frozenset()
    """Values of `command`, where it is one of a few."""

    def fits(self, schema: Mapping[str, object]) -> bool:
        """Return whether a tool with this schema understands every call of the shape."""
        properties = lenient.as_mapping(schema.get("properties"))
        allowed = lenient.as_items(lenient.as_mapping(properties.get("command")).get("enum"))
        return (
            self.parameters <= properties.keys()
            and self.always >= set(lenient.as_items(schema.get("required")))
            and (not allowed or self.commands <= set(allowed))
        )


_SHAPES: Mapping[str, _Shape] = {
    "str_replace_based_edit_tool": _Shape(
        "text_editor_20250728",
        frozenset(
            {
                "command",
                "path",
                "view_range",
                "file_text",
                "old_str",
                "new_str",
                "insert_line",
                "insert_text",
            }
        ),
        always=frozenset({"command", "path"}),
        commands=frozenset({"view", "create", "str_replace", "insert"}),
    ),
    # a call that restarts the shell has no command
    "bash": _Shape("bash_20250124", frozenset({"command", "restart"}), always=frozenset()),
}


def native_type(tool: ToolDefinition) -> str | None:
    """Return what the API calls a tool that has the name and shape of one that it knows."""
    shape = _SHAPES.get(tool.name)
    return shape.type if shape is not None and shape.fits(tool.schema) else None


_REF = "#/$defs/"


def output_format(output: OutputFormat) -> dict[str, Any] | None:
    """Return what the API is sent, or None if it would not take, or not mean, the same.

    Objects whose names are not known, types that hold themselves, and values of any type
    cannot be said.
    """
    if not _is_sayable(output.schema, lenient.as_mapping(output.schema.get("$defs")), ()):
        return None
    return {"type": "json_schema", "schema": transform_schema(dict(output.schema))}


def _is_sayable(node: object, defs: Mapping[str, Any], inside: tuple[str, ...]) -> bool:
    """Return whether a schema keeps its meaning; `inside` are the definitions around it."""
    schema = lenient.as_mapping(node)
    ref = lenient.as_text(schema.get("$ref"))
    if ref:
        name = ref.removeprefix(_REF)
        return name not in inside and _is_sayable(defs.get(name), defs, (*inside, name))
    if "enum" in schema or "const" in schema:
        return True
    if "anyOf" in schema:
        return all(_is_sayable(each, defs, inside) for each in lenient.as_items(schema["anyOf"]))
    if schema.get("type") == "object":
        properties = lenient.as_mapping(schema.get("properties")).values()
        is_closed = schema.get("additionalProperties") is False
        return is_closed and all(_is_sayable(each, defs, inside) for each in properties)
    if schema.get("type") == "array":
        return "prefixItems" not in schema and _is_sayable(schema.get("items"), defs, inside)
    return isinstance(schema.get("type"), str)
