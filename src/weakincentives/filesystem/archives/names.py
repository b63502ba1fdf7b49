"""How names are spelled in an archive, and which ones can be in it.

`docs/reference/archive-format.md` specifies it.
"""

import hashlib
import re
from collections.abc import Sequence

from weakincentives.filesystem.archives.format import ArchiveError
from weakincentives.filesystem.paths import RESERVED_PREFIX, brief

_LONGEST_ENTRY = 60_000  # bytes; a ZIP holds names of up to 65,535
_LONGEST_SEGMENT = 255  # bytes that the file systems of Linux and macOS store
_LONGEST_TARGET = 4_095  # bytes that Linux stores in a link
_LONGEST_TEXT = 1024 * 1024  # characters of a path

# control characters, backslashes, bytes that would not decode, what looks like an escape
_ESCAPED = re.compile("[\x00-\x1f\x7f\\\\\udc80-\udcff]|%(?=[0-9A-F]{2})|(?<=\\A[A-Za-z]):")
_ESCAPE = re.compile(b"%([0-9A-F]{2})")
_NOWHERE = frozenset({"", ".", ".."})


def is_plain(text: str) -> bool:
    """Return whether paths made of `text`, whatever their order, are spelled as they are."""
    return (
        text.isascii()
        and text.isprintable()
        and "%" not in text
        and ":" not in text
        and "\\" not in text
    )


def escape(text: str) -> str:
    """Return a path or link target as the manifest spells it: always printable Unicode.

    Raises:
        ArchiveError: It holds a lone surrogate, which stands for no byte.
    """
    if text.isascii() and text.isprintable() and "%" not in text and "\\" not in text:
        return text if text[1:2] != ":" else _ESCAPED.sub(_percent, text)
    escaped = _ESCAPED.sub(_percent, text)
    try:
        escaped.encode()
    except UnicodeEncodeError:
        raise ArchiveError(f"Name holds a lone surrogate: {brief(text)!r}") from None
    return escaped


def unescape(text: str) -> str:
    """Return the exact path or link target that `text` spells.

    Raises:
        ArchiveError: Nothing is spelled so.
    """
    if len(text) > _LONGEST_TEXT:
        raise ArchiveError(f"Name is too long: {brief(text)!r}")
    if "%" not in text and text.isascii() and text.isprintable():
        exact = text
    else:
        packed = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())
        exact = packed.decode(errors="surrogateescape")
    if escape(exact) != text:
        raise ArchiveError(f"Name is not spelled as it must be: {brief(text)!r}")
    return exact


def unescape_all(texts: Sequence[str]) -> list[str]:
    """Return the exact paths that `texts` spell."""
    longest = max(map(len, texts), default=0)
    if longest <= _LONGEST_TEXT and is_plain("".join(texts)):
        return list(texts)
    return [unescape(each) for each in texts]


def entry_of(escaped: str) -> str:
    """Return the name below `files/` for an escaped path: itself, unless it is too long."""
    if len(escaped) < _LONGEST_ENTRY // 4:
        return escaped
    packed = escaped.encode()
    if len(packed) <= _LONGEST_ENTRY:
        return escaped
    return "%00" + hashlib.sha256(packed).hexdigest()  # no path holds a NUL


def check_path(path: str) -> None:
    """Refuse a path that cannot be the exact path of something in a workspace."""
    segments = path.split("/")
    if not _NOWHERE.isdisjoint(segments) or "\0" in path:
        raise ArchiveError(f"Path is not inside the workspace: {brief(path)!r}")
    if RESERVED_PREFIX in path and any(each.startswith(RESERVED_PREFIX) for each in segments):
        raise ArchiveError(f"Path has a reserved name: {brief(path)!r}")
    # a character has up to 4 bytes
    if (
        max(map(len, segments)) * 4 > _LONGEST_SEGMENT
        and max(map(_length, segments)) > _LONGEST_SEGMENT
    ):
        raise ArchiveError(f"Path has a name that is too long: {brief(path)!r}")


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths if one of them cannot be in a workspace; looks at each only if need be."""
    segments = f"/{'/'.join(paths)}/"
    longest = max(map(len, segments.split("/")))
    if (
        longest * 4 > _LONGEST_SEGMENT
        or "\0" in segments
        or RESERVED_PREFIX in segments
        or leads_elsewhere(segments)
    ):
        for path in paths:
            check_path(path)


def leads_elsewhere(segments: str) -> bool:
    """Return whether a segment is empty, `.` or `..`; a slash is before and after each."""
    return "//" in segments or "/./" in segments or "/../" in segments


def check_target(target: str, path: str) -> None:
    """Refuse what no link can point to."""
    if not target or "\0" in target or _length(target) > _LONGEST_TARGET:
        raise ArchiveError(f"Link has an impossible target: {brief(path)!r}")


def _length(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))


def _percent(match: re.Match[str]) -> str:
    return f"%{match[0].encode(errors='surrogateescape')[0]:02X}"
