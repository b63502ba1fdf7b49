"""Tools that Claude was trained on, and that Anthropic's API knows by a type of their own.

Such a tool is sent without a schema and without a description. It is still ours to run, and
so what it does here is told to the model elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from weakincentives.adapters import wire
from weakincentives.adapters.conversation import ToolDefinition


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
        properties = wire.mapping(schema.get("properties"))
        allowed = wire.items(wire.mapping(properties.get("command")).get("enum"))
        return (
            self.parameters <= properties.keys()
            and self.always >= set(wire.items(schema.get("required")))
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
