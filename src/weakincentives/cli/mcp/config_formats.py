"""Edit configuration files in place: one entry is added, replaced or removed, the rest stays.

JSON: Python's own decoder finds where each member of an object is, in a text whose comments and
trailing commas are blanked: VS Code, Cursor and Gemini accept them. Only the characters of one
member change. TOML: one table, as whole lines. YAML has no parser here: only the plain form that
goose writes is edited, a document whose keys begin at the start of a line, and a block mapping
below the key of the table. Everything else raises an error, and the user gets the text to paste.
"""

import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast

Entry: TypeAlias = Mapping[str, Any]
"""The configuration of one server, as plain data."""
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
_KEY = r"(?P<key>[A-Za-z0-9_.-]+|\"[^\"\\]*\"|'[^']*'):(?=\s|$)"
_TOP = re.compile(_KEY)
_IGNORED = re.compile(r"\s*(?:#.*)?$")
_MARKER = re.compile(r"(?:---|\.\.\.|%)")
_EMPTY = re.compile(r"(?<=:)[ \t]*(?:\{\s*\}|null|~)(?=\s|$)")
_EMPTY_VALUE = re.compile(r"\s*(?:\{\s*\}|null|~)?\s*(?:#.*)?$")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


class ConfigEditError(ValueError):
    """A configuration file cannot be edited without risk; the message says why."""


class ConfigFormat(ABC):
    """A kind of configuration file. Every method raises ConfigEditError for a text of another."""

    @abstractmethod
    def read(self, text: str, table: str) -> dict[str, Any]:
        """Return the servers that a file configures."""

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

    def _parse(self, text: str) -> dict[str, Any] | None:
        """Return what a text says; None if there is no parser."""
        del text

    @abstractmethod
    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        """Add or replace an entry."""

    @abstractmethod
    def _remove(self, text: str, table: str, name: str) -> str:
        """Remove an entry that is there."""

    def _check(self, before: str, after: str, table: str, entries: Entry) -> str:
        """Return an edited text that has these entries, if everything else in it is as before."""
        expected = self._parse(before)
        if expected is None:
            return after
        found: dict[str, Any] = {}
        with suppress(ConfigEditError):
            found = {table: {}, **(self._parse(after) or {})}
        if found != {**expected, table: entries}:
            raise ConfigEditError(f"It has {table!r} in a form that cannot be edited safely")
        return after


class JsonFormat(ConfigFormat):
    """JSON with comments and trailing commas."""

    def read(self, text: str, table: str) -> dict[str, Any]:
        """Return the servers that a file configures."""
        if not self._parse(text):
            return {}
        found = _find(text, _root(text), table)
        value: object = {} if found is None else found.value
        if not isinstance(value, dict):
            raise ConfigEditError(f"{table!r} in it is not an object")
        return cast("dict[str, Any]", value)

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

    def read(self, text: str, table: str) -> dict[str, Any]:
        """Return the servers that a file configures."""
        found = self._parse(text).get(table, {})
        if not isinstance(found, dict):
            raise ConfigEditError(f"{table!r} in it is not a table")
        return cast("dict[str, Any]", found)

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
    """YAML in its plain form; each server is its text, below `text`."""

    def read(self, text: str, table: str) -> dict[str, Any]:
        """Return the servers that a file configures."""
        lines = text.splitlines(keepends=True)
        header = _find_header(lines, table)
        children = [] if header is None else _children(lines, header)
        return {name: {"text": "".join(lines[start:end])} for name, start, end in children}

    def render(self, table: str, name: str, entry: Entry) -> str:
        """Return the text to paste into a new file."""
        return f"{table}:\n{_render_block(name, entry, _DEFAULT_INDENT)}"

    def _insert(self, text: str, table: str, name: str, entry: Entry) -> str:
        lines = text.splitlines(keepends=True)
        newline = newline_of(text)
        header = _find_header(lines, table)
        if header is None:
            end = "" if not text or text.endswith("\n") else newline
            return text + end + self.render(table, name, entry).replace("\n", newline)
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
        lines[header] = (
            _EMPTY.sub("", lines[header], count=1).removesuffix("\n").rstrip("\r") + newline
        )
        return "".join((*lines[: header + 1], block, *lines[header + 1 :]))

    def _remove(self, text: str, table: str, name: str) -> str:
        lines = text.splitlines(keepends=True)
        header = _find_header(lines, table)
        assert header is not None
        children = _children(lines, header)
        start, end = next((start, end) for own, start, end in children if own == name)
        if len(children) == 1:
            lines[header] = lines[header].replace(":", ": {}", 1)
        return "".join((*lines[:start], *lines[end:]))


JSON = JsonFormat()
TOML = TomlFormat()
YAML = YamlFormat()


def newline_of(text: str) -> str:
    """Return the line ending that a text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def quote(text: str) -> str:
    """Return a string in double quotes that JSON, TOML and YAML read alike."""
    parts = ['"']
    for character in text:
        number = ord(character)
        if character in '"\\':
            parts.append(f"\\{character}")
        elif number < 0x20 or 0x7F <= number < 0xA0 or number in (0x2028, 0x2029, 0xFEFF):
            parts.append(f"\\u{number:04x}")
        else:
            parts.append(character)
    return "".join((*parts, '"'))


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


def _remove_member(text: str, start: int, name: str) -> str:
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
    match value:
        case str():
            return quote(value)
        case dict():
            table = cast("dict[str, object]", value)
            pairs = (f"{_toml_key(key)} = {_toml_value(each)}" for key, each in table.items())
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(_toml_value, cast('list[object]', value)))}]"
        case _:
            return json.dumps(value)


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
