"""Definitions of foreign tools: names, descriptions and schemas that every provider accepts.

What a server says about its tools goes to the model with every request, so it is checked first.
A tool that cannot be offered is refused by name, with a reason; the others stay.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from weakincentives.characters import INVISIBLE
from weakincentives.posix import display_path
from weakincentives.serde import encode

MAX_SCHEMA_BYTES = 32_000
"""The largest JSON schema of a tool."""
MAX_SCHEMA_NODES = 2_000
"""The most values in a schema, with every reference replaced by what it refers to."""
MAX_SCHEMA_DEPTH = 32
"""The deepest nesting of a schema, with references likewise."""
MAX_DESCRIPTION = 2_000
"""The most characters of a tool's description."""
_MAX_PARAMETER_DESCRIPTION = 1_000
_MAX_NAME, _MAX_FOREIGN_NAME = 64, 128
_MAX_LISTED = 80  # characters of a name in a message
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROSE = frozenset({"description", "title", "$comment"})
# providers reject them at the top level; the server checks its arguments itself
_TOP_LEVEL_ONLY_NESTED = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")
_ALLOWED = frozenset("\t\n\r\u200d\ufe0f")  # in values: white space, and parts of emoji


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as a server lists it: nothing in it has been checked, except that it has a name.

    Args:
        name: Its name at the server, or a description of its place if that is not text.
        fields: What else the server says about it.
        problem: Why it has no name, if it has none.
    """

    name: str
    fields: Mapping[str, object]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A tool of a server that is not offered.

    Args:
        name: Its name, shortened, with invisible characters escaped.
        reason: Why it is not offered.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        """Return a sentence."""
        return f"{self.name} is not offered: {self.reason}"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A foreign tool as a model may see it.

    Args:
        name: The name for the model.
        foreign_name: The name at the server.
        description: The server's description, without invisible characters; it may be empty.
        schema: The JSON schema of its arguments.
    """

    name: str
    foreign_name: str
    description: str
    schema: Mapping[str, object]


class UnusableToolError(ValueError):
    """A tool cannot be offered; the message is the reason."""


def read_listing(items: Iterable[object]) -> list[ListedTool]:
    """Return the items of a list of tools, whatever a server has put into it."""
    found: list[ListedTool] = []
    for number, item in enumerate(items, 1):
        fields = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name = fields.get("name")
        if isinstance(name, str):
            found.append(ListedTool(name, fields))
        else:
            what = "it is not an object" if not isinstance(item, dict) else "its name is not text"
            shown = display_name(repr(name if isinstance(item, dict) else item))
            found.append(ListedTool(f"(number {number})", fields, f"{what}: {shown}"))
    return found


def define_tools(
    tools: Iterable[ListedTool], prefix: str
) -> tuple[list[OfferedTool], list[RefusedTool]]:
    """Return the tools that can be offered under `prefix`, and those that cannot."""
    defined: dict[str, OfferedTool] = {}
    refused: list[RefusedTool] = []
    seen: set[str] = set()
    for tool in tools:
        try:
            if tool.problem:
                raise UnusableToolError(tool.problem)
            if tool.name in seen:
                raise UnusableToolError("the server lists two tools with this name")
            seen.add(tool.name)
            definition = _define(tool, prefix, defined)
            defined[definition.name] = definition
        except UnusableToolError as error:
            refused.append(RefusedTool(display_name(tool.name), str(error)))
    return list(defined.values()), refused


def display_name(name: str) -> str:
    """Return a foreign name for a message."""
    return display_path(name if len(name) <= _MAX_LISTED else f"{name[:_MAX_LISTED]}...")


def clean_text(text: str, limit: int) -> str:
    """Return text without invisible characters, except for line breaks and tabs, and cut it."""
    visible = INVISIBLE.sub(lambda match: match[0] if match[0] in "\n\t" else "", text).strip()
    return visible if len(visible) <= limit else f"{visible[:limit].rstrip()} [...]"


def _define(tool: ListedTool, prefix: str, taken: Mapping[str, object]) -> OfferedTool:
    if not tool.name or len(tool.name) > _MAX_FOREIGN_NAME:
        raise UnusableToolError(f"its name must have 1 to {_MAX_FOREIGN_NAME} characters")
    if INVISIBLE.search(tool.name):
        raise UnusableToolError("its name has control or invisible characters")
    description, schema = tool.fields.get("description"), tool.fields.get("inputSchema")
    if description is not None and not isinstance(description, str):
        raise UnusableToolError("its description is not text")
    if not isinstance(schema, dict):
        raise UnusableToolError("its input schema is not an object")
    return OfferedTool(
        _tool_name(prefix, tool.name, taken),
        tool.name,
        clean_text(description or "", MAX_DESCRIPTION),
        _check_schema(cast("dict[str, Any]", schema)),
    )


def _tool_name(prefix: str, name: str, taken: Mapping[str, object]) -> str:
    """Return the name for the model, with a hash if it is too long or taken."""
    full = f"{prefix}__{_UNSAFE.sub('_', name)}"
    if len(full) <= _MAX_NAME and full not in taken:
        return full
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    marked = f"{full[: _MAX_NAME - len(mark) - 1]}_{mark}"
    if marked in taken:
        raise UnusableToolError(f"its name is too similar to that of another tool: {marked}")
    return marked


def _check_schema(schema: dict[str, Any]) -> dict[str, object]:
    """Return a schema for every provider.

    It is the server's own, except that prose is cleaned, and that the top level is a plain object:
    no references, and none of the keywords that providers reject there.
    """
    try:
        size = len(encode(schema))
    except (ValueError, RecursionError) as error:
        raise UnusableToolError("its input schema is not valid JSON") from error
    if size > MAX_SCHEMA_BYTES:
        raise UnusableToolError(
            f"its input schema has {size:,} bytes, more than {MAX_SCHEMA_BYTES:,}"
        )
    _References(schema).check()
    cleaned = cast("dict[str, Any]", _clean(_resolve_top_level(schema)))
    properties = cleaned.get("properties", {})
    if cleaned.get("type", "object") != "object" or not isinstance(properties, dict):
        raise UnusableToolError("its input schema does not describe an object")
    required = cleaned.get("required", [])
    if not isinstance(required, list) or not all(
        isinstance(each, str) for each in cast("list[object]", required)
    ):
        raise UnusableToolError("its input schema has a 'required' that is no list of names")
    for name, value in cast("dict[str, object]", properties).items():
        if not isinstance(value, dict | bool):
            raise UnusableToolError(f"its parameter {display_name(name)!r} has no schema")
        if not _PARAMETER.fullmatch(name):
            raise UnusableToolError(
                f"providers accept no parameter called {display_name(name)!r}:"
                " only letters, digits, '_', '.' and '-', at most 64"
            )
    kept = {key: each for key, each in cleaned.items() if key not in _TOP_LEVEL_ONLY_NESTED}
    return {**kept, "type": "object", "properties": properties}


def _resolve_top_level(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace references at the top level by what they refer to; there are no cycles."""
    while isinstance(schema.get("$ref"), str):
        target = _look_up(schema, schema["$ref"])
        if not isinstance(target, dict):
            break
        rest = {key: each for key, each in schema.items() if key != "$ref"}
        schema = {**cast("dict[str, Any]", target), **rest}
    return schema


def _clean(node: object, key: str = "") -> object:
    """Return a copy of a part of a schema with prose cleaned; `key` is its key in an object."""
    if isinstance(node, str):
        return _clean_string(node, is_prose=key in _PROSE)
    if isinstance(node, list):
        return [_clean(each) for each in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    return {
        _clean_string(name, is_prose=False): _clean(each, name)
        for name, each in cast("dict[str, object]", node).items()
    }


def _clean_string(text: str, *, is_prose: bool) -> str:
    if is_prose:
        return clean_text(text, _MAX_PARAMETER_DESCRIPTION)
    for match in INVISIBLE.finditer(text):
        if match[0] not in _ALLOWED:
            raise UnusableToolError(
                "its input schema has control or invisible characters in a value:"
                f" U+{ord(match[0]):04X}"
            )
    return text


class _References:
    """Checks how large and deep a schema is, with its references resolved."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._sizes: dict[str, tuple[int, int]] = {}
        self._open: list[str] = []

    def check(self) -> None:
        self._measure(self._schema, 0)

    def _measure(self, node: object, depth: int) -> tuple[int, int]:
        """Return the number of values below a node, and how deep they are nested."""
        if depth > MAX_SCHEMA_DEPTH:
            raise UnusableToolError(
                f"its input schema is nested more than {MAX_SCHEMA_DEPTH} levels deep"
            )
        below = [self._measure(each, depth + 1) for each in _children(node)]
        if isinstance(node, dict):
            ref = cast("dict[str, object]", node).get("$ref")
            if isinstance(ref, str):
                below.append(self._follow(ref))
        size = 1 + sum(each for each, _ in below)
        height = 1 + max((each for _, each in below), default=0)
        if size > MAX_SCHEMA_NODES or height > MAX_SCHEMA_DEPTH:
            raise UnusableToolError("its input schema is too large with its references resolved")
        return size, height

    def _follow(self, ref: str) -> tuple[int, int]:
        if ref in self._open:
            raise UnusableToolError(f"its input schema refers to itself: {display_name(ref)}")
        if ref not in self._sizes:
            self._open.append(ref)
            self._sizes[ref] = self._measure(_look_up(self._schema, ref), 0)
            self._open.pop()
        return self._sizes[ref]


def _children(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        yield from cast("dict[str, object]", node).values()
    elif isinstance(node, list):
        yield from cast("list[object]", node)


def _look_up(schema: Mapping[str, object], ref: str) -> object:
    """Return what a reference within a schema refers to."""
    if ref != "#" and not ref.startswith("#/"):
        raise UnusableToolError(f"its input schema refers to another document: {display_name(ref)}")
    found: Any = schema
    for step in ref.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise UnusableToolError(f"its input schema refers to nothing: {display_name(ref)}")
        found = cast("dict[str, Any]", found)[name]
    return found


def select_tools(
    tools: Sequence[ListedTool], include: Sequence[str], exclude: Sequence[str] = ()
) -> list[ListedTool]:
    """Return the tools whose names match a pattern of `include`, if any, and none of `exclude`."""
    wanted, unwanted = _compile(include or ("*",)), _compile(exclude)
    return [
        tool
        for tool in tools
        if any(each.fullmatch(tool.name) for each in wanted)
        and not any(each.fullmatch(tool.name) for each in unwanted)
    ]


def _compile(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    """Return regular expressions for names in which `*` stands for any characters."""
    return [re.compile(".*".join(map(re.escape, each.split("*"))), re.DOTALL) for each in patterns]
