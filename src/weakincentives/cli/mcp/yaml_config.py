"""Edit YAML configuration in place, without a YAML library: one block of lines in one mapping.

Only the plain form that goose writes is edited: a document whose keys begin at the start of a
line, and a block mapping below the key of the table. Everything else raises an error, and the user
gets the text to paste.
"""

import json
import re
from typing import Any, cast

from weakincentives.cli.mcp.edit import ConfigEditError, Entry, newline_of, quote

_KEY = r"(?P<key>[A-Za-z0-9_.-]+|\"[^\"\\]*\"|'[^']*'):(?=\s|$)"
_TOP = re.compile(_KEY)
_IGNORED = re.compile(r"\s*(?:#.*)?$")
_MARKER = re.compile(r"(?:---|\.\.\.|%)")
_EMPTY = re.compile(r"(?<=:)[ \t]*(?:\{\s*\}|null|~)(?=\s|$)")
_EMPTY_VALUE = re.compile(r"\s*(?:\{\s*\}|null|~)?\s*(?:#.*)?$")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_DEFAULT_INDENT = "  "


def read_yaml_entries(text: str, table: str) -> dict[str, Any]:
    """Return the servers that a file configures, each with its text below `text`.

    Raises:
        ConfigEditError: The text is not in the plain form.
    """
    lines = text.splitlines(keepends=True)
    header = _find_header(lines, table)
    if header is None:
        return {}
    found: dict[str, Any] = {}
    for name, start, end in _children(lines, header):
        found[name] = {"text": "".join(lines[start:end])}
    return found


def put_yaml_entry(text: str, table: str, name: str, entry: Entry) -> str:
    """Return the text with a server added or replaced.

    Raises:
        ConfigEditError: The text is not in the plain form.
    """
    lines = text.splitlines(keepends=True)
    newline = newline_of(text)
    header = _find_header(lines, table)
    if header is None:
        end = "" if not text or text.endswith("\n") else newline
        return text + end + render_yaml_entry(table, name, entry).replace("\n", newline)
    children = _children(lines, header)
    indent = _DEFAULT_INDENT
    if children:
        first = lines[children[0][1]]
        indent = " " * (len(first) - len(first.lstrip(" ")))
    block = _render_block(name, entry, indent).replace("\n", newline)
    for own, start, end in children:
        if own == name:
            return "".join((*lines[:start], block, *lines[end:]))
    # as the first child: the last one may end with a block of text that looks like comments
    lines[header] = _EMPTY.sub("", lines[header], count=1).removesuffix("\n").rstrip("\r") + newline
    return "".join((*lines[: header + 1], block, *lines[header + 1 :]))


def drop_yaml_entry(text: str, table: str, name: str) -> str:
    """Return the text without a server that it has.

    Raises:
        ConfigEditError: The text is not in the plain form.
    """
    lines = text.splitlines(keepends=True)
    header = _find_header(lines, table)
    assert header is not None
    children = _children(lines, header)
    start, end = next((start, end) for own, start, end in children if own == name)
    if len(children) == 1:
        lines[header] = lines[header].replace(":", ": {}", 1)
    return "".join((*lines[:start], *lines[end:]))


def render_yaml_entry(table: str, name: str, entry: Entry) -> str:
    """Return the text to paste into a new file."""
    return f"{table}:\n{_render_block(name, entry, _DEFAULT_INDENT)}"


def _render_block(name: str, entry: Entry, indent: str) -> str:
    lines = [f"{indent}{_scalar(name)}:\n"]
    inner = indent + _DEFAULT_INDENT
    for key, value in entry.items():
        match value:
            case list() | dict() if not value:
                lines.append(f"{inner}{key}: {json.dumps(value)}\n")
            case list():
                lines.append(f"{inner}{key}:\n")
                lines.extend(f"{inner}  - {_scalar(each)}\n" for each in cast("list[Any]", value))
            case dict():
                lines.append(f"{inner}{key}:\n")
                table = cast("dict[str, Any]", value)
                lines.extend(f"{inner}  {each}: {_scalar(table[each])}\n" for each in table)
            case _:
                lines.append(f"{inner}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = _BARE.fullmatch(value) and value.lower() not in _WORDS
    return value if is_plain else quote(value)


def _find_header(lines: list[str], table: str) -> int | None:
    """Return the line with the key of the table.

    Raises:
        ConfigEditError: The document or the table is not in the plain form.
    """
    found: int | None = None
    is_begun = False
    for number, line in enumerate(lines):
        if line.startswith("---") and not line[3:].strip() and not is_begun:
            is_begun = True
            continue
        if _IGNORED.match(line) or line.startswith((" ", "- ")):
            continue  # an item of a list may begin where its key does
        is_begun = True
        match = _TOP.match(line)
        if _MARKER.match(line) or match is None:
            raise ConfigEditError(f"It is not plain YAML: line {number + 1}")
        if match["key"].strip("\"'") != table:
            continue
        if found is not None or not _EMPTY_VALUE.match(line, match.end()):
            raise ConfigEditError(f"{table!r} in it is not a plain mapping: line {number + 1}")
        found = number
    return found


def _children(lines: list[str], header: int) -> list[tuple[str, int, int]]:
    """Return the name of each entry below a line, with the lines that it is on.

    Raises:
        ConfigEditError: They are not a mapping.
    """
    found: list[tuple[str, int, int]] = []
    indent: int | None = None
    for number in range(header + 1, len(lines)):
        line = lines[number]
        if _IGNORED.match(line):
            continue
        depth = len(line) - len(line.lstrip(" "))
        if not depth:
            if line.startswith("-"):
                raise ConfigEditError(f"Its servers are not a mapping: line {number + 1}")
            break
        indent = depth if indent is None else indent
        if depth > indent:
            name, start, _ = found[-1]
            found[-1] = (name, start, number + 1)
            continue
        match = _TOP.match(line, depth)
        if depth < indent or match is None:
            raise ConfigEditError(f"Its servers are not a plain mapping: line {number + 1}")
        found.append((match["key"].strip("\"'"), number, number + 1))
    return found
