"""Edit JSON configuration in place: comments, key order, indentation and line endings survive.

Python's own decoder finds where each member of an object is, in a text whose comments and trailing
commas are blanked: VS Code, Cursor and Gemini accept them. Only the characters of one member are
inserted, replaced or removed.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from weakincentives.cli.mcp.edit import ConfigEditError, Entry, check_edit, newline_of, quote

_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*"|[\[{,:]\s*,)|,(?=\s*[\]}])', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_NOT_NEWLINE = re.compile(r"[^\r\n]")
_BYTE_ORDER_MARK = "\ufeff"
_DEFAULT_INDENT = "  "
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object, and where it is in the text."""

    key: str
    start: int
    value: Any
    value_start: int
    end: int
    comma: int | None
    """Where the comma after it is; None if there is none."""


def read_json_entries(text: str, table: str) -> dict[str, Any]:
    """Return the servers that a file configures.

    Raises:
        ConfigEditError: The text is not JSON, or the table is not an object.
    """
    if not text.strip(_BYTE_ORDER_MARK + " \t\r\n"):
        return {}
    _parse(text)
    found = _find(text, _root(text), table)
    value: object = {} if found is None else found.value
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
    root = _root(text)
    unit = _indent_unit(text, root)
    found = _find(text, root, table)
    if found is None:
        edited = _insert(text, root, table, {name: entry}, unit)
    elif (member := _find(text, found.value_start, name)) is None:
        edited = _insert(text, found.value_start, name, entry, unit)
    else:
        rendered = _render(entry, unit, _line_indent(text, member.start), newline_of(text))
        edited = text[: member.value_start] + rendered + text[member.end :]
    return check_edit(_parse, text, edited, table, {**before, name: entry})


def drop_json_entry(text: str, table: str, name: str) -> str:
    """Return the text without a server that it has.

    Raises:
        ConfigEditError: The text is not JSON.
    """
    before = read_json_entries(text, table)
    found = _find(text, _root(text), table)
    assert found is not None
    left = {key: value for key, value in before.items() if key != name}
    return check_edit(_parse, text, _remove(text, found.value_start, name), table, left)


def render_json_entry(table: str, name: str, entry: Entry) -> str:
    """Return the text to paste into a new file."""
    return _render({table: {name: entry}}, _DEFAULT_INDENT, "", "\n") + "\n"


# --- editing ---


def _insert(text: str, start: int, key: str, value: object, unit: str) -> str:
    """Add a member at the end of the object that begins at a position."""
    members, close = _members(text, start)
    newline = newline_of(text)
    last = members[-1] if members else None
    begin = start + 1 if last is None else last.end
    gap = text[begin:close]
    before = "," if last is not None and last.comma is None else ""
    if last is not None and "\n" not in text[start:close]:
        member = f"{quote(key)}: {json.dumps(value, ensure_ascii=False)}"
        kept = gap.rstrip()
        return text[:begin] + before + kept + f" {member}" + gap[len(kept) :] + text[close:]
    outer = _line_indent(text, start)
    indent = outer + unit if last is None else _line_indent(text, last.start)
    kept = gap.rstrip()
    rest = gap[len(kept) :]
    if "\n" not in rest:
        rest = newline + outer
    member = f"{quote(key)}: {_render(value, unit, indent, newline)}"
    after = "," if last is not None and last.comma is not None else ""
    return text[:begin] + before + kept + newline + indent + member + after + rest + text[close:]


def _remove(text: str, start: int, name: str) -> str:
    """Take a member out of an object, with the lines that only it is on."""
    members, close = _members(text, start)
    index = next(number for number, each in enumerate(members) if each.key == name)
    member = members[index]
    is_last = index == len(members) - 1
    end = member.end if member.comma is None else member.comma + 1
    if is_last and index and member.comma is None:
        comma = members[index - 1].comma
        assert comma is not None
        kept = text[comma + 1 : member.start].rstrip()
        return text[:comma] + kept + text[end:]
    begin = len(text[: member.start].rstrip(" \t"))
    if is_last:
        before = text[:begin].rstrip()
        if not index and before == text[: start + 1] and not text[end:close].strip():
            return before + text[close:]  # nothing is left in it
        return before + text[end:]
    rest = text[end:]
    blank = len(rest) - len(rest.lstrip(" \t"))
    if text[:begin].endswith("\n") and rest[blank:].startswith(("\n", "\r\n")):
        return text[:begin] + rest[blank:].removeprefix("\r").removeprefix("\n")
    return text[: member.start] + rest[blank:]


def _render(value: object, unit: str, indent: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"{newline}{indent}".join(lines)


def _indent_unit(text: str, root: int) -> str:
    for member in _members(text, root)[0]:
        indent = _line_indent(text, member.start)
        if indent and "\n" in text[root : member.start]:
            return indent
    return _DEFAULT_INDENT


def _line_indent(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


# --- parsing ---


@lru_cache(4)
def _blank(text: str) -> tuple[str, str]:
    """Return the text with blanks for comments, and also for commas behind the last member."""
    bare = _COMMENT.sub(lambda found: found[1] or _NOT_NEWLINE.sub(" ", found[0]), text)
    if bare.startswith(_BYTE_ORDER_MARK):
        bare = " " + bare[1:]
    return bare, _LAST_COMMA.sub(lambda found: found[1] or " ", bare)


def _parse(text: str) -> dict[str, Any]:
    """Return the object that the text is.

    Raises:
        ConfigEditError: It is not one; the message has the line.
    """
    try:
        found: object = json.loads(_blank(text)[1])
    except json.JSONDecodeError as error:
        raise ConfigEditError(f"It is not JSON: line {error.lineno}") from error
    except RecursionError as error:
        raise ConfigEditError("It is nested too deeply") from error
    if not isinstance(found, dict):
        raise ConfigEditError("It is not a JSON object")
    return cast("dict[str, Any]", found)


def _find(text: str, start: int, key: str) -> _Member | None:
    """Return a member of the object that begins at a position."""
    found = [each for each in _members(text, start)[0] if each.key == key]
    if len(found) > 1:
        raise ConfigEditError(f"It has {key!r} twice")
    return found[0] if found else None


def _root(text: str) -> int:
    return _blank(text)[0].index("{")


def _members(text: str, start: int) -> tuple[list[_Member], int]:
    """Return the members of the object that begins at a position, and where it ends."""
    bare, plain = _blank(text)
    members: list[_Member] = []
    position = _skip(plain, start + 1)
    while plain[position] != "}":
        key, end = _decoder.raw_decode(plain, position)
        value_start = _skip(plain, plain.index(":", end) + 1)
        value, end = _decoder.raw_decode(plain, value_start)
        after = _skip(bare, end)
        comma = after if bare[after] == "," else None
        members.append(_Member(key, position, value, value_start, end, comma))
        position = _skip(plain, after if comma is None else comma + 1)
    return members, position


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()
