"""Edit JSON configuration in place: comments, key order, indentation and line endings survive.

The text is parsed with the position of every object member, and only the characters of one
member are inserted, replaced or removed. Comments and trailing commas are accepted, because VS
Code, Cursor and Gemini accept them.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

from weakincentives.cli.mcp.edit import ConfigEditError, Entry, newline_of, quote

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_BYTE_ORDER_MARK = "\ufeff"
_MAX_DEPTH = 100
_DEFAULT_INDENT = "  "


@dataclass(slots=True)
class _Node:
    """A value and where it is in the text."""

    start: int
    end: int
    value: Any
    members: "list[_Member]" = field(default_factory=list["_Member"])


@dataclass(slots=True)
class _Member:
    """A member of an object: its key, its value, and the comma after it."""

    key: str
    start: int
    node: _Node
    comma: int | None = None


def read_json_entries(text: str, table: str) -> dict[str, Any]:
    """Return the servers that a file configures.

    Raises:
        ConfigEditError: The text is not JSON, or the table is not an object.
    """
    if not text.strip(_BYTE_ORDER_MARK + " \t\r\n"):
        return {}
    found = _find(_parse(text), table)
    if found is None:
        return {}
    value: object = found.node.value
    if not isinstance(value, dict):
        raise ConfigEditError(f"{table!r} in it is not an object")
    return cast("dict[str, Any]", value)


def put_json_entry(text: str, table: str, name: str, entry: Entry) -> str:
    """Return the text with a server added or replaced.

    Raises:
        ConfigEditError: The text is not JSON, or the table is not an object.
    """
    before = read_json_entries(text, table)
    if before.get(name) == entry:
        return text
    if not text.strip(_BYTE_ORDER_MARK + " \t\r\n"):
        text = "{}\n"
    root = _parse(text)
    unit = _indent_unit(text, root)
    found = _find(root, table)
    if found is None:
        edited = _insert(text, root, table, {name: entry}, unit)
    elif (member := _find(found.node, name)) is None:
        edited = _insert(text, found.node, name, entry, unit)
    else:
        indent = _line_indent(text, member.start)
        rendered = _render(entry, unit, indent, newline_of(text))
        edited = text[: member.node.start] + rendered + text[member.node.end :]
    return _verify(edited, text, table, {**before, name: entry})


def drop_json_entry(text: str, table: str, name: str) -> str:
    """Return the text without a server that it has; empty if nothing else is in it.

    Raises:
        ConfigEditError: The text is not JSON.
    """
    before = read_json_entries(text, table)
    found = _find(_parse(text), table)
    assert found is not None
    left = {key: value for key, value in before.items() if key != name}
    edited = _verify(_remove(text, found.node, name), text, table, left)
    has_more = bool(left) or len(_parse(edited).members) > 1
    return edited if has_more or "//" in edited or "/*" in edited else ""


def render_json_entry(table: str, name: str, entry: Entry) -> str:
    """Return the text to paste into a new file."""
    return _render({table: {name: entry}}, _DEFAULT_INDENT, "", "\n") + "\n"


def _verify(edited: str, text: str, table: str, entries: dict[str, Any]) -> str:
    """Return the edited text if it says what it should and everything else is as before."""
    expected = {**_parse(text).value, table: entries}
    if _parse(edited).value != expected:
        raise ConfigEditError("It is written in a way that cannot be edited safely")
    return edited


def _find(node: _Node, key: str) -> _Member | None:
    found = [each for each in node.members if each.key == key]
    if len(found) > 1:
        raise ConfigEditError(f"It has {key!r} twice")
    return found[0] if found else None


# --- editing ---


def _insert(text: str, node: _Node, key: str, value: object, unit: str) -> str:
    """Add a member at the end of an object."""
    newline, close = newline_of(text), node.end - 1
    last = node.members[-1] if node.members else None
    start = node.start + 1 if last is None else last.node.end
    gap = text[start:close]
    if last is not None and "\n" not in text[node.start : node.end]:
        comma = "" if last.comma is not None else ","
        member = f"{quote(key)}: {json.dumps(value, ensure_ascii=False)}"
        kept = gap.rstrip()
        return text[:start] + comma + kept + f" {member}" + gap[len(kept) :] + text[close:]
    outer = _line_indent(text, node.start)
    indent = outer + unit if last is None else _line_indent(text, last.start)
    kept = gap.rstrip()
    rest = gap[len(kept) :]
    if "\n" not in rest:
        rest = newline + outer
    member = f"{quote(key)}: {_render(value, unit, indent, newline)}"
    before = "," if last is not None and last.comma is None else ""
    after = "," if last is not None and last.comma is not None else ""
    return text[:start] + before + kept + newline + indent + member + after + rest + text[close:]


def _remove(text: str, node: _Node, name: str) -> str:
    """Take a member out of an object, with the lines that only it is on."""
    index = next(number for number, each in enumerate(node.members) if each.key == name)
    member = node.members[index]
    is_last = index == len(node.members) - 1
    end = member.node.end if member.comma is None else member.comma + 1
    if is_last and index and member.comma is None:
        comma = node.members[index - 1].comma
        assert comma is not None
        kept = text[comma + 1 : member.start].rstrip()
        return text[:comma] + kept + text[end:]
    start = len(text[: member.start].rstrip(" \t"))
    if is_last:
        before = text[:start].rstrip()
        if not index and before == text[: node.start + 1] and not text[end : node.end - 1].strip():
            return before + text[node.end - 1 :]  # nothing is left in it
        return before + text[end:]
    rest = text[end:]
    blank = len(rest) - len(rest.lstrip(" \t"))
    if text[:start].endswith("\n") and rest[blank:].startswith(("\n", "\r\n")):
        return text[:start] + rest[blank:].removeprefix("\r").removeprefix("\n")
    return text[: member.start] + rest[blank:]


def _render(value: object, unit: str, indent: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}{indent}".join(lines)


def _indent_unit(text: str, root: _Node) -> str:
    for member in root.members:
        indent = _line_indent(text, member.start)
        if indent and "\n" in text[root.start : member.start]:
            return indent
    return _DEFAULT_INDENT


def _line_indent(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


# --- parsing ---


def _parse(text: str) -> _Node:
    """Return the object that the text is.

    Raises:
        ConfigEditError: It is not one; the message has the line.
    """
    node = _value(text, _skip(text, len(_BYTE_ORDER_MARK) * text.startswith(_BYTE_ORDER_MARK)), 0)
    if _skip(text, node.end) != len(text):
        raise _syntax_error(text, node.end)
    if not isinstance(node.value, dict):
        raise ConfigEditError("It is not a JSON object")
    return node


def _value(text: str, start: int, depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise ConfigEditError("It is nested too deeply")
    match text[start : start + 1]:
        case "{":
            return _object(text, start, depth)
        case "[":
            return _array(text, start, depth)
        case _:
            return _scalar(text, start)


def _object(text: str, start: int, depth: int) -> _Node:
    members: list[_Member] = []
    position = _skip(text, start + 1)
    while text[position : position + 1] != "}":
        if members and members[-1].comma is None:
            raise _syntax_error(text, position)
        key = _scalar(text, position)
        colon = _skip(text, key.end)
        if not isinstance(key.value, str) or text[colon : colon + 1] != ":":
            raise _syntax_error(text, colon)
        node = _value(text, _skip(text, colon + 1), depth + 1)
        members.append(_Member(key.value, position, node))
        position = _skip(text, node.end)
        if text[position : position + 1] == ",":
            members[-1].comma = position
            position = _skip(text, position + 1)
    value = {each.key: each.node.value for each in members}
    return _Node(start, position + 1, value, members)


def _array(text: str, start: int, depth: int) -> _Node:
    values: list[Any] = []
    position, has_comma = _skip(text, start + 1), True
    while text[position : position + 1] != "]":
        if not has_comma:
            raise _syntax_error(text, position)
        node = _value(text, position, depth + 1)
        values.append(node.value)
        position = _skip(text, node.end)
        has_comma = text[position : position + 1] == ","
        if has_comma:
            position = _skip(text, position + 1)
    return _Node(start, position + 1, values)


def _scalar(text: str, start: int) -> _Node:
    match = _STRING.match(text, start) or _SCALAR.match(text, start)
    if match is None:
        raise _syntax_error(text, start)
    try:
        return _Node(start, match.end(), json.loads(match[0]))
    except ValueError as error:
        raise _syntax_error(text, start) from error


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _syntax_error(text: str, position: int) -> ConfigEditError:
    return ConfigEditError(f"It is not JSON: line {text.count(chr(10), 0, position) + 1}")
