"""How names are spelled in an archive, and which ones can be in it.

`docs/reference/archive-format.md` specifies it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from weakincentives.errors import WinkError
from weakincentives.posix import RESERVED_PREFIX, shorten_path

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
        raise ArchiveError(f"Name holds a lone surrogate: {shorten_path(text)!r}") from None
    return escaped


def unescape(text: str) -> str:
    """Return the exact path or link target that `text` spells.

    Raises:
        ArchiveError: Nothing is spelled so.
    """
    if len(text) > _LONGEST_TEXT:
        raise ArchiveError(f"Name is too long: {shorten_path(text)!r}")
    if "%" not in text and text.isascii() and text.isprintable():
        exact = text
    else:
        packed = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())
        exact = packed.decode(errors="surrogateescape")
    if escape(exact) != text:
        raise ArchiveError(f"Name is not spelled as it must be: {shorten_path(text)!r}")
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
        raise ArchiveError(f"Path is not inside the workspace: {shorten_path(path)!r}")
    if RESERVED_PREFIX in path and any(each.startswith(RESERVED_PREFIX) for each in segments):
        raise ArchiveError(f"Path has a reserved name: {shorten_path(path)!r}")
    # a character has up to 4 bytes
    if (
        max(map(len, segments)) * 4 > _LONGEST_SEGMENT
        and max(map(_length, segments)) > _LONGEST_SEGMENT
    ):
        raise ArchiveError(f"Path has a name that is too long: {shorten_path(path)!r}")


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
        raise ArchiveError(f"Link has an impossible target: {shorten_path(path)!r}")


def _length(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))


def _percent(match: re.Match[str]) -> str:
    return f"%{match[0].encode(errors='surrogateescape')[0]:02X}"


VERSION = "1"
MANIFEST = "manifest.json"
FILES = "files/"
RATIO_FREE_BYTES = 64 * 1024 * 1024
"""Expanded bytes of which no ratio is asked: what is above them may be `max_ratio` to one."""
DIRECTORY_MODE = "755"
"""What a directory has unless the manifest says otherwise."""
_LONGEST_DATE = 64
_OBJECTS_PER_ENTRY = 4  # braces in a manifest, names that hold some included
_SHA256 = re.compile("[0-9a-f]{64}")
_CRC32 = re.compile("[0-9a-f]{8}")
_HEXADECIMAL = b"0123456789abcdef"
_MODES = tuple(f"{permissions:03o}" for permissions in range(0o1000))
_PERMISSIONS = {mode: permissions for permissions, mode in enumerate(_MODES)}


class ArchiveError(WinkError, ValueError):
    """The file is no archive, or none that can be trusted."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How much an archive may unfold to before it is refused.

    Attributes:
        max_entries: Files, links and directories.
        max_total_bytes: The bytes in all files together.
        max_ratio: How many times larger than the archive that is, not counting the
            first 64 MiB.
        max_manifest_bytes: The size of the manifest, and of the directory of the ZIP.
    """

    max_entries: int = 150_000
    max_total_bytes: int = 4 * 1024**3
    max_ratio: int = 100
    max_manifest_bytes: int = 48 * 1024**2


DEFAULT_ARCHIVE_LIMITS = ArchiveLimits()


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """What an archive says about itself."""

    version: str
    created_at: datetime
    file_count: int
    total_bytes: int


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class FileRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A file in the manifest; `entry` is its name in the ZIP where that is not `path`."""

    path: str
    size: _Count
    sha256: str
    mode: str
    packed_crc32: str | None = None
    entry: str | None = None


class LinkRecord(msgspec.Struct, frozen=True, gc=False):
    """A symbolic link in the manifest."""

    path: str
    target: str


class DirectoryRecord(msgspec.Struct, frozen=True, gc=False):
    """A directory in the manifest: one that is empty, or has unusual permissions."""

    path: str
    mode: str


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The manifest as it is stored; a plain one has no `files`.

    `packer` is the library that packed the files.
    """

    version: str
    created_at: str
    file_count: _Count
    total_bytes: _Count
    files: list[FileRecord] | None = None
    links: list[LinkRecord] = msgspec.field(default_factory=list[LinkRecord])
    directories: list[DirectoryRecord] = msgspec.field(default_factory=list[DirectoryRecord])
    packer: str = "zlib"

    def summary(self) -> ArchiveManifest:
        """Return what it says about the whole archive.

        Raises:
            ArchiveError: The version is unknown, or a value makes no sense.
        """
        if self.version != VERSION:
            raise ArchiveError(f"Archive has an unknown version: {shorten_path(self.version)!r}")
        try:
            created_at = datetime.fromisoformat(self.created_at[:_LONGEST_DATE])
        except ValueError:
            text = f"Manifest has no valid created_at: {shorten_path(self.created_at)!r}"
            raise ArchiveError(text) from None
        if created_at.tzinfo is None:
            created_at = created_at.replace(tzinfo=UTC)
        return ArchiveManifest(self.version, created_at, self.file_count, self.total_bytes)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the JSON of a manifest; the same manifest gives the same bytes."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, limits: ArchiveLimits) -> Manifest:
    """Return the manifest that `data` holds.

    Raises:
        ArchiveError: It is not JSON, has values of the wrong type, or too many of them.
    """
    if data.count(b"{") > _OBJECTS_PER_ENTRY * (limits.max_entries + 1):
        raise ArchiveError(f"Manifest has more than {limits.max_entries} entries")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        text = f"Manifest is not valid: {shorten_path(str(error))} (in {MANIFEST!r})"
        raise ArchiveError(text) from None
    count = len(manifest.files or ()) + len(manifest.links) + len(manifest.directories)
    if count > limits.max_entries:
        raise ArchiveError(f"Manifest has more than {limits.max_entries} entries: {count}")
    if manifest.files is None and (manifest.links or manifest.directories):
        raise ArchiveError("Manifest has links or directories but no files")
    return manifest


def check_records(records: Sequence[FileRecord]) -> None:
    """Refuse files if the values of one make no sense; looks at each only if need be."""
    hashes = [record.sha256 for record in records]
    sums = [record.packed_crc32 for record in records if record.packed_crc32 is not None]
    digits = "".join((*hashes, *sums)).encode(errors="replace")
    are_whole = {*map(len, hashes)} <= {64} and {*map(len, sums)} <= {8}
    if not are_whole or digits.translate(None, _HEXADECIMAL):
        for record in records:
            _check_record(record)


def _check_record(record: FileRecord) -> None:
    if not _SHA256.fullmatch(record.sha256):
        raise ArchiveError(f"File has no valid sha256: {shorten_path(record.path)!r}")
    if record.packed_crc32 is not None and not _CRC32.fullmatch(record.packed_crc32):
        raise ArchiveError(f"File has no valid packed_crc32: {shorten_path(record.path)!r}")


def mode_of(permissions: int) -> str:
    """Return permission bits as the manifest spells them; what runs as others is left out."""
    return _MODES[permissions & 0o777]


def permissions_of(mode: str, path: str) -> int:
    """Return the permission bits that `mode` spells."""
    permissions = _PERMISSIONS.get(mode)
    if permissions is None:
        raise ArchiveError(f"Entry has no valid mode: {shorten_path(path)!r}")
    return permissions
