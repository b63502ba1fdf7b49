"""Edit configuration files in place: one entry is added, replaced or removed, the rest stays.

Only the characters of one entry change. JSON: Python's own decoder finds where each member of an
object is, in a text whose comments and trailing commas are blanked: VS Code, Cursor and Gemini
accept them. TOML: one table, as whole lines. YAML: the marks of PyYAML's nodes, in a document whose
servers are a block mapping. Libraries that write a whole document drop or move comments. What
cannot be edited raises an error, and the user gets the text to paste.
"""

import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, TypeAlias, cast

from weakincentives.extras import describe_missing

Entry: TypeAlias = Mapping[str, Any]
"""The configuration of one server, as plain data."""
_Pair: TypeAlias = tuple[Any, Any]
"""The nodes of a key and of its value in YAML."""
_DEFAULT_INDENT = "  "
_BYTE_ORDER_MARK = "\ufeff"
_BLANKS = _BYTE_ORDER_MARK + " \t\r\n"
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*"|[\[{,:]\s*,)|,(?=\s*[\]}])', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_NOT_NEWLINE = re.compile(r"[^\r\n]")
_decoder = json.JSONDecoder()
_TABLE_HEADER = re.compile(r"\s*\[")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_UNQUOTED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff]")


class ConfigEditError(ValueError):
    """A configuration file cannot be edited without risk; the message says why."""


class ConfigFormat(ABC):
    """A kind of configuration file. Every method raises ConfigEditError for a text of another."""

    _mapping: ClassVar[str]
    """What the format calls a mapping."""

    def read(self, text: str, table: str) -> dict[str, Any]:
        """Return the servers that a file configures."""
        found = self._parse(text).get(table, {})
        if not isinstance(found, dict):
            raise ConfigEditError(f"{table!r} in it is not {self._mapping}")
        return cast("dict[str, Any]", found)

    @abstractmethod
    def render(self, table: str, name: str, entry: Entry) -> str:
        """Return the text to paste into a new file."""

    def put(self, text: str, table: str, name: str, entry: Entry) -> str:
        """Return the text with a server added or replaced."""
        before = self.read(text, table)
        if before.get(name) == entry:
            return text
        edited = self._insert(text, table, name, entry)
        return self._check(text, edited, table, {**before, name: entry})

    def drop(self, text: str, table: str, name: str) -> str:
        """Return the text without a server that it has."""
        left = {key: each for key, each in self.read(text, table).items() if key != name}
        return self._check(text, self._remove(text, table, name), table, left)

    @abstractmethod
    def _parse(self, text: str) -> dict[str, Any]:
        """Return what a text says."""

    @abstractmethod
    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        """Add or replace an entry."""

    @abstractmethod
    def _remove(self, text: str, table: str, name: str) -> str:
        """Remove an entry that is there."""

    def _check(self, before: str, after: str, table: str, entries: Entry) -> str:
        """Return an edited text that has these entries, if everything else in it is as before."""
        with suppress(ConfigEditError, RecursionError):
            if {table: {}, **self._parse(after)} == {**self._parse(before), table: entries}:
                return after
        raise ConfigEditError(f"It has {table!r} in a form that cannot be edited safely")


class JsonFormat(ConfigFormat):
    """JSON with comments and trailing commas."""

    _mapping = "an object"

    def render(self, table: str, name: str, entry: Entry) -> str:
        """Return the text to paste into a new file."""
        return _render({table: {name: entry}}, _DEFAULT_INDENT, "", "\n") + "\n"

    def _parse(self, text: str) -> dict[str, Any]:
        if not text.strip(_BLANKS):
            return {}
        try:
            found: object = json.loads(_blank(text)[1])
        except json.JSONDecodeError as error:
            raise ConfigEditError(f"It is not JSON: line {error.lineno}") from error
        except RecursionError as error:
            raise ConfigEditError("It is nested too deeply") from error
        if not isinstance(found, dict):
            raise ConfigEditError("It is not a JSON object")
        return cast("dict[str, Any]", found)

    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        text = text if text.strip(_BLANKS) else "{}\n"
        root = _root(text)
        unit = _indent_unit(text, root)
        found = _find(text, root, table)
        if found is None:
            return _insert_member(text, root, table, {name: entry}, unit)
        member = _find(text, found.value_start, name)
        if member is None:
            return _insert_member(text, found.value_start, name, entry, unit)
        rendered = _render(entry, unit, _line_indent(text, member.start), newline_of(text))
        return text[: member.value_start] + rendered + text[member.end :]

    def _remove(self, text: str, table: str, name: str) -> str:
        found = _find(text, _root(text), table)
        assert found is not None
        return _remove_member(text, found.value_start, name)


class TomlFormat(ConfigFormat):
    """TOML."""

    _mapping = "a table"

    def render(self, table: str, name: str, entry: Entry) -> str:
        """Return the table of a server."""
        lines = [f"{key} = {_toml_value(value)}\n" for key, value in entry.items()]
        return "".join((f"[{table}.{_toml_key(name)}]\n", *lines))

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigEditError(f"It is not TOML: {error}") from error

    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        newline = newline_of(text)
        rendered = self.render(table, name, entry).replace("\n", newline)
        if name in self.read(text, table):
            lines = text.splitlines(keepends=True)
            start, end = _find_section(lines, table, name)
            return "".join((*lines[:start], rendered, *lines[end:]))
        end_of_text = "" if not text or text.endswith("\n") else newline
        return text + end_of_text + (newline if text.strip() else "") + rendered

    def _remove(self, text: str, table: str, name: str) -> str:
        lines = text.splitlines(keepends=True)
        start, end = _find_section(lines, table, name)
        if start and not lines[start - 1].strip():
            start -= 1  # the blank line that was added with it
        return "".join((*lines[:start], *lines[end:]))


class YamlFormat(ConfigFormat):
    """YAML whose servers are a block mapping."""

    _mapping = "a mapping"

    def render(self, table: str, name: str, entry: Entry) -> str:
        """Return the text to paste into a new file."""
        return f"{table}:\n{_render_block(name, entry, _DEFAULT_INDENT)}"

    def _parse(self, text: str) -> dict[str, Any]:
        _compose(text)  # keys that are there twice
        found: object = _read_yaml("safe_load", text)
        if not isinstance(found, dict | None):
            raise ConfigEditError("It is not a YAML mapping")
        values = cast("dict[str, Any]", found or {})
        # a block without members is null
        return {key: {} if value is None else value for key, value in values.items()}

    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        newline = newline_of(text)
        header = _compose(text).get(table)
        if header is None:
            end = "" if not text or text.endswith("\n") else newline
            return text + end + self.render(table, name, entry).replace("\n", newline)
        servers = _block(header)
        first = next(iter(servers.values()), None)
        indent = _DEFAULT_INDENT if first is None else _line_indent(text, first[0].start_mark.index)
        block = _render_block(name, entry, indent).replace("\n", newline)
        if name in servers:
            start, end = _lines_of(text, servers[name])
            return text[:start] + block + text[end:]
        # as the first child: the last one may end with a block of text that looks like comments
        if first is None:
            value = header[1]
            before, after = text[: value.start_mark.index], text[value.end_mark.index :]
            text = f"{before.rstrip(' ')}{after}"
        start = _line_end(text, header[0].end_mark.index)
        begin = text[:start] if text[:start].endswith("\n") else text[:start] + newline
        return begin + block + text[start:]

    def _remove(self, text: str, table: str, name: str) -> str:
        header = _compose(text)[table]
        servers = _block(header)
        start, end = _lines_of(text, servers[name])
        after_key = text.index(":", header[0].end_mark.index) + 1
        empty = " {}" if len(servers) == 1 else ""
        return text[:after_key] + empty + text[after_key:start] + text[end:]


JSON = JsonFormat()
TOML = TomlFormat()
YAML = YamlFormat()


def newline_of(text: str) -> str:
    """Return the line ending that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def quote(value: object) -> str:
    """Return a value as JSON that YAML reads alike, and TOML too if it is no object or null."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNQUOTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# --- JSON ---


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


def _insert_member(text: str, start: int, key: str, value: object, unit: str) -> str:
    """Add a member at the start of the object that begins at a position."""
    members, close = _members(text, start)
    newline, outer = newline_of(text), _line_indent(text, start)
    gap = text[start + 1 : close]
    if members and "\n" not in gap:
        first = members[0].start
        return f"{text[:first]}{quote(key)}: {quote(value)}, {text[first:]}"
    indent = _line_indent(text, members[0].start) if members else outer + unit
    member = f"{quote(key)}: {_render(value, unit, indent, newline)}{',' if members else ''}"
    rest = gap if "\n" in gap else gap.rstrip() + newline + outer
    return text[: start + 1] + newline + indent + member + rest + text[close:]


def _remove_member(text: str, start: int, name: str) -> str:
    """Take a member out of an object, with the lines that only it is on."""
    members, _ = _members(text, start)
    index = next(number for number, each in enumerate(members) if each.key == name)
    member = members[index]
    end = member.end if member.comma is None else member.comma + 1
    before, after = text[: member.start], text[end:].lstrip(" \t")
    if after.startswith(("\n", "\r\n")):
        before = before.rstrip()
    if before.endswith("{") and after.lstrip().startswith("}"):
        after = after.lstrip()  # nothing is left in it
    previous = members[index - 1].comma if index and member.comma is None else None
    if previous is not None:
        before = before[:previous] + before[previous + 1 :]
    return before + after


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


@lru_cache(4)
def _blank(text: str) -> tuple[str, str]:
    """Return the text with blanks for comments, and also for commas behind the last member."""
    bare = _COMMENT.sub(lambda found: found[1] or _NOT_NEWLINE.sub(" ", found[0]), text)
    if bare.startswith(_BYTE_ORDER_MARK):
        bare = " " + bare[1:]
    return bare, _LAST_COMMA.sub(lambda found: found[1] or " ", bare)


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


# --- TOML ---


def _toml_value(value: object) -> str:
    if not isinstance(value, dict):
        return quote(value)
    table = cast("dict[str, object]", value)
    pairs = (f"{_toml_key(key)} = {_toml_value(each)}" for key, each in table.items())
    return f"{{ {', '.join(pairs)} }}"


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else quote(name)


def _find_section(lines: list[str], table: str, name: str) -> tuple[int, int]:
    """Return the lines of a table and its own tables; comments before the next stay with that.

    Raises:
        ConfigEditError: It is not written as a table.
    """
    names = "|".join({re.escape(each) for each in (name, quote(name), f"'{name}'")})
    own = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\.\s*(?:{names})\s*(?:\]|\.)")
    start = next((number for number, line in enumerate(lines) if own.match(line)), None)
    if start is None:
        raise ConfigEditError(f"{name!r} in it is not written as [{table}.{name}]")
    end = position = start + 1
    while position < len(lines):
        line = lines[position]
        if _TABLE_HEADER.match(line) and not own.match(line):
            break
        position += 1
        if line.strip() and not line.lstrip().startswith("#"):
            end = position
    return start, end


# --- YAML ---


def _render_block(name: str, entry: Entry, indent: str) -> str:
    inner = indent + _DEFAULT_INDENT
    lines = [f"{inner}{key}: {quote(value)}\n" for key, value in entry.items()]
    return "".join((f"{indent}{quote(name)}:\n", *lines))


def _read_yaml(function: str, text: str) -> Any:
    """Return what a function of PyYAML reads."""
    try:
        library = import_module("yaml")
    except ModuleNotFoundError as error:
        raise ConfigEditError(describe_missing("YAML", "mcp")) from error
    try:
        return getattr(library, function)(text)
    except (ValueError, RecursionError, library.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f": line {mark.line + 1}"
        raise ConfigEditError(f"It is not plain YAML{where}") from error


def _compose(text: str) -> dict[str, _Pair]:
    """Return the keys of a document, with the nodes of each key and value."""
    root = _read_yaml("compose", text)
    return {} if root is None else _pairs(root)


def _pairs(node: Any) -> dict[str, _Pair]:
    if node.id != "mapping" or node.flow_style:
        raise ConfigEditError(f"It is not a plain mapping: line {node.start_mark.line + 1}")
    found: dict[str, _Pair] = {str(key.value): (key, value) for key, value in node.value}
    if len(found) < len(node.value):
        raise ConfigEditError("It has a key twice")
    return found


def _block(header: _Pair) -> dict[str, _Pair]:
    """Return the servers below a key; none if its value is empty."""
    value = header[1]
    return {} if not value.value or value.tag.endswith(":null") else _pairs(value)


def _lines_of(text: str, pair: _Pair) -> tuple[int, int]:
    """Return where the lines of an entry begin and end."""
    last = pair[1]
    while last.id != "scalar" and not last.flow_style:
        child = last.value[-1]  # the end of a block is where the next one begins
        last = child[1] if last.id == "mapping" else child
    start, end = pair[0].start_mark, last.end_mark
    return start.index - start.column, _line_end(text, end.index) if end.column else end.index


def _line_end(text: str, position: int) -> int:
    """Return where the next line begins."""
    return text.find("\n", position) + 1 or len(text)
