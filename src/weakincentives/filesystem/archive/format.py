"""How names are spelled in an archive, and which ones can be in it.

`docs/reference/archive-format.md` specifies it.
"""

import errno
import hashlib
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec

from weakincentives.errors import WinkError
from weakincentives.filesystem.manifest import (
    FILES,
    MANIFEST,
    VERSION,
    ArchiveDocument,
    ArchiveManifest,
    FileRecord,
)
from weakincentives.posix import RESERVED_PREFIX, is_temporary, os_error, shorten_path

_MAX_ENTRY_NAME = 60_000  # bytes; a ZIP holds names of up to 65,535
_MAX_SEGMENT = 255  # bytes that the file systems of Linux and macOS store
_MAX_TARGET = 4_095  # bytes that Linux stores in a link
_MAX_PATH = 1024 * 1024  # characters of a path
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
    if len(text) > _MAX_PATH:
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
    if longest <= _MAX_PATH and is_plain("".join(texts)):
        return list(texts)
    return [unescape(each) for each in texts]


def entry_of(escaped: str) -> str:
    """Return the name below `files/` for an escaped path: itself, unless it is too long."""
    if len(escaped) < _MAX_ENTRY_NAME // 4:
        return escaped
    packed = escaped.encode()
    if len(packed) <= _MAX_ENTRY_NAME:
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
    if max(map(len, segments)) * 4 > _MAX_SEGMENT and max(map(_length, segments)) > _MAX_SEGMENT:
        raise ArchiveError(f"Path has a name that is too long: {shorten_path(path)!r}")


def check_paths(paths: Sequence[str]) -> None:
    """Refuse paths if one of them cannot be in a workspace; looks at each only if need be."""
    segments = f"/{'/'.join(paths)}/"
    longest = max(map(len, segments.split("/")))
    if (
        longest * 4 > _MAX_SEGMENT
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
    if not target or "\0" in target or _length(target) > _MAX_TARGET:
        raise ArchiveError(f"Link has an impossible target: {shorten_path(path)!r}")


def _length(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))


def _percent(match: re.Match[str]) -> str:
    return f"%{match[0].encode(errors='surrogateescape')[0]:02X}"


FILES_PREFIX = FILES + "/"
"""Where the files are in the ZIP."""
RATIO_FREE_BYTES = 64 * 1024 * 1024
"""Expanded bytes of which no ratio is asked: what is above them may be `max_ratio` to one."""
_MAX_DATE = 64
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


def encode_manifest(manifest: ArchiveDocument) -> bytes:
    """Return the JSON of a manifest; the same manifest gives the same bytes."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, limits: ArchiveLimits) -> ArchiveDocument:
    """Return the manifest that `data` holds.

    Raises:
        ArchiveError: It is not JSON, has values of the wrong type, or too many of them.
    """
    if data.count(b"{") > _OBJECTS_PER_ENTRY * (limits.max_entries + 1):
        raise ArchiveError(f"Manifest has more than {limits.max_entries} entries")
    try:
        manifest = msgspec.json.decode(data, type=ArchiveDocument)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        text = f"Manifest is not valid: {shorten_path(str(error))} (in {MANIFEST!r})"
        raise ArchiveError(text) from None
    count = len(manifest.files or ()) + len(manifest.links) + len(manifest.directories)
    if count > limits.max_entries:
        raise ArchiveError(f"Manifest has more than {limits.max_entries} entries: {count}")
    if manifest.files is None and (manifest.links or manifest.directories):
        raise ArchiveError("Manifest has links or directories but no files")
    return manifest


def summarize(document: ArchiveDocument) -> ArchiveManifest:
    """Return the summary of a manifest.

    Raises:
        ArchiveError: The version is unknown, or the date is invalid.
    """
    if document.version != VERSION:
        raise ArchiveError(f"Archive has an unknown version: {shorten_path(document.version)!r}")
    try:
        created_at = datetime.fromisoformat(document.created_at[:_MAX_DATE])
    except ValueError:
        text = f"Manifest has no valid created_at: {shorten_path(document.created_at)!r}"
        raise ArchiveError(text) from None
    if created_at.tzinfo is None:
        created_at = created_at.replace(tzinfo=UTC)
    return ArchiveManifest(document.version, created_at, document.file_count, document.total_bytes)


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


@contextmanager
def error_context(archive: Path) -> Generator[None, None, None]:
    """Let errors that name nothing, or what nobody sees, name the archive."""
    try:
        yield
    except OSError as error:
        is_told = error.filename is not None and not is_temporary(os.fsdecode(error.filename))
        if is_told or isinstance(error, WinkError):
            raise
        raise os_error(error.errno or errno.EIO, str(archive), error.strerror or "") from error


STORED, DEFLATED = 0, 8
STREAMED = 1 << 3  # sizes follow the data
FASTEST = 0b11 << 1  # how hard it was compressed: not very
UTF8 = 1 << 11
UNIX = 3
MAX_16, MAX_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
WIDE = 0xF0000000
"""Sizes from here on get 64 bits, which leaves room for what deflate adds."""
LOCAL = Struct("<4s5H3L2H")
"""Signature, version, flags, method, time, date, crc, packed, size, name, extra."""
CENTRAL = Struct("<4s6H3L5H2L")
"""Signature, made by, version, flags, method, time, date, crc, packed, size, name, extra,
comment, disk, internal, external, offset."""
END = Struct("<4s4H2LH")
"""Signature, disk, disk of the directory, entries here, entries, size, offset, comment."""
END64 = Struct("<4sQ2H2L4Q")
"""Signature, size, made by, version, disk, disk of the directory, entries here, entries,
size, offset."""
LOCATOR64 = Struct("<4sLQL")
"""Signature, disk, offset, disks."""
LOCAL_SIGNATURE = b"PK\3\4"
CENTRAL_SIGNATURE = b"PK\1\2"
END_SIGNATURE = b"PK\5\6"
END64_SIGNATURE = b"PK\6\6"
LOCATOR64_SIGNATURE = b"PK\6\7"
_BEGINNING = Struct("<6H")  # of a record in the directory after its signature, up to the date
_WIDE_SIZES = Struct("<2H2Q")
_VERSION = 45  # of the format: 64 bits
_MADE_BY = (UNIX << 8) | _VERSION
_TIME, _DATE = 0, (1 << 5) | 1  # midnight of 1980-01-01, the first that a ZIP knows


class ZipMember(NamedTuple):
    """An entry of a ZIP; `offset` is where the header before its content begins."""

    name: str
    flags: int
    method: int
    crc: int
    packed_size: int
    size: int
    mode: int
    offset: int

    @property
    def is_directory(self) -> bool:
        """Whether it stands for a directory."""
        return self.name.endswith("/")

    @property
    def least_end(self) -> int:
        """Where it ends if nothing stands between its name and its content."""
        return self.offset + LOCAL.size + len(self.name) + self.packed_size


def is_wide(size: int) -> bool:
    """Return whether a size needs 64 bits."""
    return size >= WIDE


def local_header(member: ZipMember, wide: bool) -> bytes:
    """Return what stands before the packed bytes of an entry; `wide` if sizes need 64 bits."""
    name = member.name.encode()
    sizes, extra = (member.packed_size, member.size), b""
    if wide:
        extra = _WIDE_SIZES.pack(ZIP64_EXTRA, 16, member.size, member.packed_size)
        sizes = (MAX_32, MAX_32)
    lengths = len(name), len(extra)
    fixed = _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    return LOCAL.pack(LOCAL_SIGNATURE, *fixed, *sizes, *lengths) + name + extra


def central(member: ZipMember) -> bytes:
    """Return the record of an entry in the directory."""
    name = member.name.encode()
    wide = b""
    small: list[int] = []
    for value in (member.size, member.packed_size, member.offset):
        if value >= WIDE:
            wide += value.to_bytes(8, "little")
        small.append(MAX_32 if value >= WIDE else value)
    if wide:
        wide = ZIP64_EXTRA.to_bytes(2, "little") + len(wide).to_bytes(2, "little") + wide
    size, packed_size, offset = small
    external = (member.mode << 16) | (0x10 if member.is_directory else 0)
    fixed = _MADE_BY, _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    lengths = len(name), len(wide), 0
    tail = 0, 0, external, offset
    return CENTRAL.pack(CENTRAL_SIGNATURE, *fixed, packed_size, size, *lengths, *tail) + name + wide


def entry_prefix(flags: int, method: int) -> bytes:
    """Return how the record of an entry goes on after its signature, if it is packed so."""
    return _BEGINNING.pack(_MADE_BY, _VERSION, flags, method, _TIME, _DATE)


def end_records(count: int, length: int, begin: int) -> bytes:
    """Return what ends a ZIP."""
    wide = b""
    if count >= MAX_16 or length >= WIDE or begin >= WIDE:
        fixed = END64.size - 12, _MADE_BY, _VERSION, 0, 0
        wide = END64.pack(END64_SIGNATURE, *fixed, count, count, length, begin)
        wide += LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, begin + length, 1)
        count, length, begin = MAX_16, MAX_32, MAX_32
    return wide + END.pack(END_SIGNATURE, 0, 0, count, count, length, begin, 0)
