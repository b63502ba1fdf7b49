"""Workspace paths: relative, POSIX, never above the root.

A normalized path has no leading slash, no `.`, no `..` and no empty segment; the
root is the empty string. Every other module receives normalized paths only.
"""

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from weakincentives.characters import INVISIBLE
from weakincentives.errors import WinkError
from weakincentives.filesystem.limits import (
    DEFAULT_LIMITS,
    MAX_PATH_DEPTH,
    LimitExceededError,
    Limits,
)

RESERVED_PREFIX = ".wink-tmp-"
"""Names that start so are ours: writes in progress, and what a killed writer left."""

_MAX_SEGMENT_BYTES = 255  # what the file systems of Linux and macOS store
_MAX_SHOWN = 1_000  # characters of a path in an error message
_SHOWN = re.compile(
    r"\\(?:(?P<plain>[\\nrt])|x(?P<byte>[0-9a-f]{2})|u(?P<short>[0-9a-f]{4})|U(?P<long>[0-9a-f]{8}))"
)
_UNSHOWABLE = re.compile("[\\\\\x00-\x1f\x7f]|[^\x00-\x7f]")


class InvalidPathError(WinkError, ValueError):
    """The text is not a path, or not a name that may be created."""


class PathEscapeError(WinkError, PermissionError):
    """The path points outside the workspace."""


def normalize_path(path: str) -> str:
    """Return `path` in normal form.

    Raises:
        InvalidPathError: The path holds a NUL character.
        PathEscapeError: The path climbs out with `..`.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Path must be a string, not {type(path).__name__}: {path!r}")
    if "\0" in path:
        raise InvalidPathError(f"Path holds a NUL character: {brief(path)!r}")
    if path[:1] not in {".", "/", ""} and "/." not in path and "//" not in path and path[-1] != "/":
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not kept:
                raise PathEscapeError(f"Path escapes root: {brief(path)!r}")
            kept.pop()
        elif segment not in {"", "."}:
            kept.append(segment)
    return "/".join(kept)


def validate_path(path: str, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return `path` in normal form if it may be created.

    Raises:
        InvalidPathError: A segment holds characters that nobody can see, is not in
            normal form C, begins or ends with a blank, or is reserved.
        PathEscapeError: The path climbs out with `..`.
        LimitExceededError: The path is too deep, or a segment too long.
    """
    normal = normalize_path(path)
    check_new(normal, normal.count("/") + 1, limits)
    return normal


def check_new(path: str, count: int, limits: Limits) -> None:
    """Check a normalized path of which the last `count` segments are to be created."""
    segments = path.split("/")
    if len(segments) > limits.max_path_depth:
        raise LimitExceededError(
            f"Path depth exceeds {limits.max_path_depth} segments:"
            f" {len(segments)} in {brief(path)!r}"
        )
    for segment in segments[-count:]:
        _check_segment(segment, limits)


def shown(path: str) -> str:
    """Return `path` for people and models: the root as `.`, what cannot be seen escaped."""
    if not path:
        return "."
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return _UNSHOWABLE.sub(_escaped, path)


def unshown(text: str) -> str:
    """Return the path that `shown` shows so."""
    return _SHOWN.sub(_unescaped, text)


def brief(path: str) -> str:
    """Return `path` for an error message: a very long one without its middle."""
    if len(path) <= _MAX_SHOWN:
        return path
    half = _MAX_SHOWN // 2
    return f"{path[:half]}...{path[-half:]}"


def parent_of(path: str) -> str:
    """Return the directory that holds `path`; the root holds its children."""
    return path.rpartition("/")[0]


def outermost(paths: Iterable[str]) -> list[str]:
    """Return `paths` in normal form, sorted, without those that lie below others.

    Raises:
        TypeError: One path was given where several are expected.
    """
    if isinstance(paths, str):
        raise TypeError(f"Paths must be a sequence of paths, not one: {paths!r}")
    kept: list[str] = []
    for path in sorted(set(map(normalize_path, paths)), key=lambda path: path.split("/")):
        if not kept or (kept[-1] and not f"{path}/".startswith(f"{kept[-1]}/")):
            kept.append(path)
    return kept


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above `path`, outermost first, without the root."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def join(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`."""
    return f"{directory}/{name}" if directory else name


def os_error(code: int, path: str, text: str = "") -> OSError:
    """Return the builtin error for an `errno` code; Python picks the class."""
    return OSError(code, text or os.strerror(code), shown(brief(path)))


@dataclass(frozen=True, slots=True)
class VfsPath:
    """A strict path in segments: ASCII, relative, without `.` and `..`."""

    segments: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what is not a plain ASCII name."""
        for segment in self.segments:
            if segment in {"", ".", ".."} or "/" in segment or not segment.isascii():
                raise InvalidPathError(f"Path segment must be a plain ASCII name: {segment!r}")
            _check_segment(segment, DEFAULT_LIMITS)
        if len(self.segments) > MAX_PATH_DEPTH:
            raise LimitExceededError(
                f"Path depth exceeds {MAX_PATH_DEPTH} segments: {len(self.segments)}"
            )

    @classmethod
    def parse(cls, path: str) -> Self:
        """Return the segments of `path`; doubled slashes collapse.

        Raises:
            InvalidPathError: The path is absolute, or a segment is no plain ASCII name.
        """
        if path.startswith("/"):
            raise InvalidPathError(f"Path must be relative: {path!r}")
        return cls(tuple(segment for segment in path.split("/") if segment))

    def __str__(self) -> str:
        """Return the path with slashes."""
        return "/".join(self.segments)


def _check_segment(segment: str, limits: Limits) -> None:
    if len(segment) > limits.max_segment_length:
        raise LimitExceededError(
            f"Path segment exceeds {limits.max_segment_length} characters: {brief(segment)!r}"
        )
    if not segment.isascii() or not segment.isprintable():
        _check_characters(segment)
    if segment.strip() != segment:
        raise InvalidPathError(f"Path segment begins or ends with a blank: {segment!r}")
    if segment.startswith(RESERVED_PREFIX):
        raise InvalidPathError(f"Path segment is reserved: {segment!r}")
    if len(segment.encode()) > _MAX_SEGMENT_BYTES:
        raise LimitExceededError(f"Path segment exceeds {_MAX_SEGMENT_BYTES} bytes: {segment!r}")


def _check_characters(segment: str) -> None:
    found = INVISIBLE.search(segment)
    if found is not None:
        raise InvalidPathError(
            f"Path segment holds the invisible character {found[0]!a}: '{shown(segment)}'"
        )
    normal = unicodedata.normalize("NFC", segment)
    if normal != segment:
        raise InvalidPathError(
            f"Path segment is not in Unicode normal form C: {segment!r}, use {normal!r}"
        )


def _unescaped(match: re.Match[str]) -> str:
    plain, byte, short, long = match.group("plain", "byte", "short", "long")
    if plain:
        return {"n": "\n", "r": "\r", "t": "\t"}.get(plain, plain)
    code = int(byte or short or long, 16)
    if byte and code >= 0x80:
        code += 0xDC00  # a byte that would not decode
    return chr(code) if code <= sys.maxunicode else match.group()


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # the byte that would not decode
    if character.isprintable() and not INVISIBLE.match(character):
        return character
    if code < 0x80:
        return character.encode("unicode_escape").decode()
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
