"""Path strings: join, parents, display with invisible characters escaped, errors with a path."""

import os
import re
import sys
from collections.abc import Iterator

from weakincentives.characters import INVISIBLE

_UNPRINTABLE = re.compile("[\\\\\x00-\x1f\x7f]|[^\x00-\x7f]")
_ESCAPES = re.compile(
    r"\\(?:(?P<plain>[\\nrt])|x(?P<byte>[0-9a-f]{2})|u(?P<short>[0-9a-f]{4})|U(?P<long>[0-9a-f]{8}))"
)
MAX_DISPLAYED = 1_000  # characters of a path in an error message


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8
    if character.isprintable() and not INVISIBLE.match(character):
        return character
    if code < 0x80:
        return character.encode("unicode_escape").decode()
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _unescape(match: re.Match[str]) -> str:
    plain, byte, short, long = match.group("plain", "byte", "short", "long")
    if plain:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(plain, plain)
    code = int(byte or short or long, 16)
    if byte and code >= 0x80:
        code += 0xDC00  # a byte that is not UTF-8
    return chr(code) if code <= sys.maxunicode else match.group()


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above `path`, outermost first, without the root."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def parent_of(path: str) -> str:
    """Return the parent directory of `path`; the root is the empty string."""
    return path.rpartition("/")[0]


def join(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`."""
    return f"{directory}/{name}" if directory else name


def shorten_path(path: str) -> str:
    """Return `path` for an error message; a very long one loses its middle."""
    if len(path) <= MAX_DISPLAYED:
        return path
    half = MAX_DISPLAYED // 2
    return f"{path[:half]}...{path[-half:]}"


def parse_displayed_path(text: str) -> str:
    """Return the path that `display_path` renders as `text`."""
    return _ESCAPES.sub(_unescape, text)


def display_path(path: str) -> str:
    """Return `path` for people and models: the root as `.`, invisible characters escaped."""
    if not path:
        return "."
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return _UNPRINTABLE.sub(_escape, path)


def os_error(code: int, path: str, text: str = "") -> OSError:
    """Return the builtin error for an `errno` code; Python picks the class."""
    return OSError(code, text or os.strerror(code), display_path(shorten_path(path)))
