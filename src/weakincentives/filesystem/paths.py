"""Workspace paths: relative, POSIX, never above the root.

A normalized path has no leading slash, no `.`, no `..` and no empty segment; the
root is the empty string. Every other module receives normalized paths only.
"""

import re
import unicodedata
from collections.abc import Iterable
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
from weakincentives.posix import RESERVED_PREFIX, display_path, shorten_path

TOOL_OUTPUT = ".wink-output"
"""The directory at the root in which tools keep long output; not part of the project."""
_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}
_MAX_SEGMENT_BYTES = 255  # what the file systems of Linux and macOS store


class InvalidPathError(WinkError, ValueError):
    """The text is not a path, or not a valid name for a new entry."""


class PathEscapeError(WinkError, PermissionError):
    """The path points outside the workspace."""


def normalize_path(path: str) -> str:
    """Return `path` in normal form.

    Raises:
        InvalidPathError: The path contains a NUL character.
        PathEscapeError: The path leaves the workspace with `..`.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Path must be a string, not {type(path).__name__}: {path!r}")
    if "\0" in path:
        raise InvalidPathError(f"Path contains a NUL character: {shorten_path(path)!r}")
    if path[:1] not in {".", "/", ""} and "/." not in path and "//" not in path and path[-1] != "/":
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not kept:
                raise PathEscapeError(f"Path escapes root: {shorten_path(path)!r}")
            kept.pop()
        elif segment not in {"", "."}:
            kept.append(segment)
    return "/".join(kept)


def is_tool_output(path: str) -> bool:
    """Return whether a normalized path is output that a tool keeps, not part of the project."""
    return path.startswith(TOOL_OUTPUT) and path.split("/", 1)[0] == TOOL_OUTPUT


def validate_path(path: str, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return `path` in normal form, if it is a valid path for a new entry.

    Raises:
        InvalidPathError: A segment contains invisible characters, is not in Unicode normal
            form C, begins or ends with whitespace, or is reserved.
        PathEscapeError: The path leaves the workspace with `..`.
        LimitExceededError: The path is too deep, or a segment too long.
    """
    normal = normalize_path(path)
    check_new_path(normal, normal.count("/") + 1, limits)
    return normal


def check_new_path(path: str, count: int, limits: Limits) -> None:
    """Check a normalized path whose last `count` segments are new; raises as `validate_path`."""
    segments = path.split("/")
    if len(segments) > limits.max_path_depth:
        raise LimitExceededError(
            f"Path depth exceeds {limits.max_path_depth} segments:"
            f" {len(segments)} in {shorten_path(path)!r}"
        )
    for segment in segments[-count:]:
        _check_segment(segment, limits)


def outermost(paths: Iterable[str]) -> list[str]:
    """Return `paths` normalized and sorted, without those below another one.

    Raises:
        TypeError: `paths` is one string.
    """
    if isinstance(paths, str):
        raise TypeError(f"Paths must be a sequence of paths, not one: {paths!r}")
    kept: list[str] = []
    for path in sorted(set(map(normalize_path, paths)), key=lambda path: path.split("/")):
        if not kept or (kept[-1] and not f"{path}/".startswith(f"{kept[-1]}/")):
            kept.append(path)
    return kept


def encode_path(name: str) -> bytes:
    """Encode a path or a link's target as it is on disk."""
    return name.encode("utf-8", "surrogateescape")


def quote_path(name: bytes) -> bytes:
    """Quote a path as git does: if it contains anything but printable ASCII."""
    if not _QUOTED.search(name):
        return name
    return b'"%b"' % _QUOTED.sub(_escape, name)


def label_path(prefix: bytes, path: str | None) -> bytes:
    """Return the name of a file in the first lines of a patch; None stands for no file."""
    if path is None:
        return b"/dev/null"
    # git ends a name with spaces by a tab, since the last word could be read as a date
    return quote_path(prefix + encode_path(path)) + (b"\t" if " " in path else b"")


@dataclass(frozen=True, slots=True)
class VfsPath:
    """A strict path in segments: ASCII, relative, without `.` and `..`."""

    segments: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that every segment is a plain ASCII name."""
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
        """Parse `path`; repeated slashes collapse.

        Raises:
            InvalidPathError: The path is absolute, or a segment is not a plain ASCII name.
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
            f"Path segment exceeds {limits.max_segment_length} characters:"
            f" {shorten_path(segment)!r}"
        )
    if not segment.isascii() or not segment.isprintable():
        _check_characters(segment)
    if segment.strip() != segment:
        raise InvalidPathError(f"Path segment begins or ends with whitespace: {segment!r}")
    if segment.startswith(RESERVED_PREFIX):
        raise InvalidPathError(f"Path segment is reserved: {segment!r}")
    if len(segment.encode()) > _MAX_SEGMENT_BYTES:
        raise LimitExceededError(f"Path segment exceeds {_MAX_SEGMENT_BYTES} bytes: {segment!r}")


def _check_characters(segment: str) -> None:
    found = INVISIBLE.search(segment)
    if found is not None:
        raise InvalidPathError(
            f"Path segment contains the invisible character {found[0]!a}: '{display_path(segment)}'"
        )
    normal = unicodedata.normalize("NFC", segment)
    if normal != segment:
        raise InvalidPathError(
            f"Path segment is not in Unicode normal form C: {segment!r}, use {normal!r}"
        )


def _escape(match: re.Match[bytes]) -> bytes:
    byte = match.group()[0]
    return b"\\" + (_ESCAPES.get(byte) or b"%03o" % byte)
