"""What the editors of configuration files share: the error, and the style of a text."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

Entry: TypeAlias = Mapping[str, Any]
"""The configuration of one server, as plain data."""


class ConfigEditError(ValueError):
    """A configuration file cannot be edited without risk; the message says why."""


def check_edit(
    parse: Callable[[str], dict[str, Any]], before: str, after: str, table: str, entries: Entry
) -> str:
    """Return an edited text that has these entries, if everything else in it is as before.

    Raises:
        ConfigEditError: It says something else.
    """
    found: dict[str, Any] = {}
    with suppress(ConfigEditError):
        found = {table: {}, **parse(after)}
    if found != {**parse(before), table: entries}:
        raise ConfigEditError(f"It has {table!r} in a form that cannot be edited safely")
    return after


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
