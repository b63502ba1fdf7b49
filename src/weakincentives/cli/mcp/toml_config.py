"""Edit TOML configuration in place: one table is added, replaced or removed as whole lines."""

import json
import re
import tomllib
from typing import Any, cast

from weakincentives.cli.mcp.edit import ConfigEditError, Entry, check_edit, newline_of, quote

_HEADER = re.compile(r"\s*\[")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_toml_entries(text: str, table: str) -> dict[str, Any]:
    """Return the servers that a file configures.

    Raises:
        ConfigEditError: The text is not TOML, or the table is not one.
    """
    found = _parse(text).get(table, {})
    if not isinstance(found, dict):
        raise ConfigEditError(f"{table!r} in it is not a table")
    return cast("dict[str, Any]", found)


def put_toml_entry(text: str, table: str, name: str, entry: Entry) -> str:
    """Return the text with a server added or replaced.

    Raises:
        ConfigEditError: The text is not TOML, or has the table in another form.
    """
    before = read_toml_entries(text, table)
    if before.get(name) == entry:
        return text
    lines = text.splitlines(keepends=True)
    newline = newline_of(text)
    rendered = render_toml_entry(table, name, entry).replace("\n", newline)
    if name in before:
        start, end = _find_section(lines, table, name)
        edited = "".join((*lines[:start], rendered, *lines[end:]))
    else:
        end = "" if not text or text.endswith("\n") else newline
        edited = text + end + (newline if text.strip() else "") + rendered
    return check_edit(_parse, text, edited, table, {**before, name: entry})


def drop_toml_entry(text: str, table: str, name: str) -> str:
    """Return the text without a server that it has.

    Raises:
        ConfigEditError: The text is not TOML, or has the table in another form.
    """
    before = read_toml_entries(text, table)
    lines = text.splitlines(keepends=True)
    start, end = _find_section(lines, table, name)
    if start and not lines[start - 1].strip():
        start -= 1  # the blank line that was added with it
    edited = "".join((*lines[:start], *lines[end:]))
    left = {key: value for key, value in before.items() if key != name}
    return check_edit(_parse, text, edited, table, left)


def render_toml_entry(table: str, name: str, entry: Entry) -> str:
    """Return the table of a server."""
    lines = [f"{key} = {_render(value)}\n" for key, value in entry.items()]
    return "".join((f"[{table}.{_key(name)}]\n", *lines))


def _render(value: object) -> str:
    match value:
        case str():
            return quote(value)
        case dict():
            table = cast("dict[str, object]", value)
            pairs = (f"{_key(key)} = {_render(each)}" for key, each in table.items())
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(_render, cast('list[object]', value)))}]"
        case _:
            return json.dumps(value)


def _key(name: str) -> str:
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
        if _HEADER.match(line) and not own.match(line):
            break
        position += 1
        if line.strip() and not line.lstrip().startswith("#"):
            end = position
    return start, end


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigEditError(f"It is not TOML: {error}") from error
