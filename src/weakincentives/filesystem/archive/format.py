"""The archive format: percent-encoded names, limits, the manifest's codec, and ZIP records.

`docs/reference/archive-format.md` specifies it; `filesystem.manifest` has the manifest's types.
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
# control characters, backslashes, bytes that are not UTF-8, text that looks like an escape
_ESCAPED = re.compile("[\x00-\x1f\x7f\\\\\udc80-\udcff]|%(?=[0-9A-F]{2})|(?<=\\A[A-Za-z]):")
_ESCAPE = re.compile(b"%([0-9A-F]{2})")
_SPECIAL_SEGMENTS = frozenset({"", ".", ".."})
FILES_PREFIX = FILES + "/"
"""Where the files are in the ZIP."""
RATIO_FREE_BYTES = 64 * 1024 * 1024
"""Decompressed bytes that are exempt from `max_ratio`."""
_MAX_DATE = 64
_OBJECTS_PER_ENTRY = 4  # opening braces in a manifest, with a margin for names that have some
_SHA256 = re.compile("[0-9a-f]{64}")
_CRC32 = re.compile("[0-9a-f]{8}")
_HEXADECIMAL = b"0123456789abcdef"
_MODES = tuple(f"{permissions:03o}" for permissions in range(0o1000))
_PERMISSIONS = {mode: permissions for permissions, mode in enumerate(_MODES)}
STORED, DEFLATED = 0, 8
STREAMED = 1 << 3  # flag: sizes follow the data
FASTEST = 0b11 << 1  # flags: compressed by the fastest method
UTF8 = 1 << 11
UNIX = 3
MAX_16, MAX_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 0x0001
WIDE = 0xF0000000
"""Sizes from here on use ZIP64, with a margin for what deflate may add."""
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
_RECORD_PREFIX = Struct("<6H")  # of a central record after its signature, up to the date
_WIDE_SIZES = Struct("<2H2Q")
_VERSION = 45  # of the ZIP format: supports ZIP64
_MADE_BY = (UNIX << 8) | _VERSION
_TIME, _DATE = 0, (1 << 5) | 1  # 1980-01-01 00:00, the earliest in a ZIP


def is_plain(text: str) -> bool:
    """Return whether no path made of pieces of `text` needs an escape."""
    return text.isascii() and text.isprintable() and not any(each in text for each in "%:\\")


def escape(text: str) -> str:
    """Return a path or link target percent-encoded for the manifest: always valid Unicode.

    Raises:
        ArchiveError: It contains a surrogate that does not represent a byte.
    """
    if text.isascii() and text.isprintable() and "%" not in text and "\\" not in text:
        return text if text[1:2] != ":" else _ESCAPED.sub(_percent_encode, text)
    escaped = _ESCAPED.sub(_percent_encode, text)
    try:
        escaped.encode()
    except UnicodeEncodeError:
        raise ArchiveError(f"Name contains a lone surrogate: {shorten_path(text)!r}") from None
    return escaped


def unescape(text: str) -> str:
    """Return the path or link target that `escape` encodes as `text`.

    Raises:
        ArchiveError: `text` is not the encoding of any name.
    """
    if len(text) > _MAX_PATH:
        raise ArchiveError(f"Name is too long: {shorten_path(text)!r}")
    if "%" not in text and text.isascii() and text.isprintable():
        exact = text
    else:
        raw = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())
        exact = raw.decode(errors="surrogateescape")
    if escape(exact) != text:
        raise ArchiveError(f"Name is not escaped correctly: {shorten_path(text)!r}")
    return exact


def unescape_all(texts: Sequence[str]) -> list[str]:
    """Return the paths that `texts` encode."""
    longest = max(map(len, texts), default=0)
    if longest <= _MAX_PATH and is_plain("".join(texts)):
        return list(texts)
    return [unescape(each) for each in texts]


def entry_name(escaped: str) -> str:
    """Return the ZIP name below `files/` of an escaped path: itself, or a hash if too long."""
    if len(escaped) < _MAX_ENTRY_NAME // 4:
        return escaped
    raw = escaped.encode()
    if len(raw) <= _MAX_ENTRY_NAME:
        return escaped
    return "%00" + hashlib.sha256(raw).hexdigest()  # unique: no path contains a NUL


def check_path(path: str) -> None:
    """Raise ArchiveError if a path cannot be in a workspace."""
    segments = path.split("/")
    if not _SPECIAL_SEGMENTS.isdisjoint(segments) or "\0" in path:
        raise ArchiveError(f"Path is not inside the workspace: {shorten_path(path)!r}")
    if RESERVED_PREFIX in path and any(each.startswith(RESERVED_PREFIX) for each in segments):
        raise ArchiveError(f"Path has a reserved name: {shorten_path(path)!r}")
    # a character has up to 4 bytes
    if (
        max(map(len, segments)) * 4 > _MAX_SEGMENT
        and max(map(_encoded_size, segments)) > _MAX_SEGMENT
    ):
        raise ArchiveError(f"Path has a segment that is too long: {shorten_path(path)!r}")


def check_paths(paths: Sequence[str]) -> None:
    """Raise ArchiveError if one of the paths cannot be in a workspace.

    All are checked together; each alone only if that finds something suspicious.
    """
    segments = f"/{'/'.join(paths)}/"
    longest = max(map(len, segments.split("/")))
    if (
        longest * 4 > _MAX_SEGMENT
        or "\0" in segments
        or RESERVED_PREFIX in segments
        or has_special_segment(segments)
    ):
        for path in paths:
            check_path(path)


def has_special_segment(segments: str) -> bool:
    """Return whether a segment is empty, `.` or `..`; each has a slash before and after it."""
    return "//" in segments or "/./" in segments or "/../" in segments


def check_target(target: str, path: str) -> None:
    """Raise ArchiveError if no link can have this target."""
    if not target or "\0" in target or _encoded_size(target) > _MAX_TARGET:
        raise ArchiveError(f"Link has an invalid target: {shorten_path(path)!r}")


def _encoded_size(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))


def _percent_encode(match: re.Match[str]) -> str:
    return f"%{match[0].encode(errors='surrogateescape')[0]:02X}"


class ArchiveError(WinkError, ValueError):
    """The file is not an archive, or is damaged or unsafe."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits on the decompressed size of an archive, against ZIP bombs.

    Attributes:
        max_entries: Files, links and directories.
        max_total_bytes: Bytes of all files together.
        max_ratio: How many times larger than the archive the files may be, not counting the
            first 64 MiB.
        max_manifest_bytes: Size of the manifest, and of the ZIP's central directory.
    """

    max_entries: int = 150_000
    max_total_bytes: int = 4 * 1024**3
    max_ratio: int = 100
    max_manifest_bytes: int = 48 * 1024**2


DEFAULT_ARCHIVE_LIMITS = ArchiveLimits()


def encode_manifest(manifest: ArchiveDocument) -> bytes:
    """Return the JSON of a manifest; the encoding is deterministic."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes, limits: ArchiveLimits) -> ArchiveDocument:
    """Parse a manifest.

    Raises:
        ArchiveError: It is not JSON, has values of the wrong type, or too many entries.
    """
    if data.count(b"{") > _OBJECTS_PER_ENTRY * (limits.max_entries + 1):
        raise ArchiveError(f"Manifest has more than {limits.max_entries} entries")
    try:
        manifest = msgspec.json.decode(data, type=ArchiveDocument)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        text = f"Manifest {MANIFEST!r} is not valid: {shorten_path(str(error))}"
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
    """Raise ArchiveError if a file record has an invalid hash or checksum.

    All are checked together; each alone only if that finds something suspicious.
    """
    hashes = [record.sha256 for record in records]
    sums = [record.packed_crc32 for record in records if record.packed_crc32 is not None]
    digits = "".join((*hashes, *sums)).encode(errors="replace")
    have_length = {*map(len, hashes)} <= {64} and {*map(len, sums)} <= {8}
    if not have_length or digits.translate(None, _HEXADECIMAL):
        for record in records:
            _check_record(record)


def _check_record(record: FileRecord) -> None:
    if not _SHA256.fullmatch(record.sha256):
        raise ArchiveError(f"File has no valid sha256: {shorten_path(record.path)!r}")
    if record.packed_crc32 is not None and not _CRC32.fullmatch(record.packed_crc32):
        raise ArchiveError(f"File has no valid packed_crc32: {shorten_path(record.path)!r}")


def format_mode(permissions: int) -> str:
    """Return permission bits as three octal digits; setuid, setgid and sticky are dropped."""
    return _MODES[permissions & 0o777]


def parse_mode(mode: str, path: str) -> int:
    """Return the permission bits of three octal digits."""
    permissions = _PERMISSIONS.get(mode)
    if permissions is None:
        raise ArchiveError(f"Entry has no valid mode: {shorten_path(path)!r}")
    return permissions


@contextmanager
def error_context(archive: Path) -> Generator[None, None, None]:
    """Let errors that have no path, or that of a temporary file, name the archive."""
    try:
        yield
    except OSError as error:
        has_path = error.filename is not None and not is_temporary(os.fsdecode(error.filename))
        if has_path or isinstance(error, WinkError):
            raise
        raise os_error(error.errno or errno.EIO, str(archive), error.strerror or "") from error


class ZipMember(NamedTuple):
    """An entry of a ZIP; `offset` is the position of its local header."""

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
        """Whether it is the entry of a directory."""
        return self.name.endswith("/")

    @property
    def least_end(self) -> int:
        """Where it ends if it has no extra field."""
        return self.offset + LOCAL.size + len(self.name) + self.packed_size


def needs_zip64(size: int) -> bool:
    """Return whether a size needs ZIP64."""
    return size >= WIDE


def local_header(member: ZipMember, *, wide: bool) -> bytes:
    """Return the local header of an entry; `wide` if its sizes use ZIP64."""
    name = member.name.encode()
    sizes, extra = (member.packed_size, member.size), b""
    if wide:
        extra = _WIDE_SIZES.pack(ZIP64_EXTRA, 16, member.size, member.packed_size)
        sizes = (MAX_32, MAX_32)
    lengths = len(name), len(extra)
    fixed = _VERSION, member.flags, member.method, _TIME, _DATE, member.crc
    return LOCAL.pack(LOCAL_SIGNATURE, *fixed, *sizes, *lengths) + name + extra


def central_record(member: ZipMember) -> bytes:
    """Return the record of an entry in the central directory."""
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


def central_prefix(flags: int, method: int) -> bytes:
    """Return the start of our central records with these flags, after the signature."""
    return _RECORD_PREFIX.pack(_MADE_BY, _VERSION, flags, method, _TIME, _DATE)


def end_records(count: int, length: int, begin: int) -> bytes:
    """Return the end of central directory records."""
    wide = b""
    if count >= MAX_16 or length >= WIDE or begin >= WIDE:
        fixed = END64.size - 12, _MADE_BY, _VERSION, 0, 0
        wide = END64.pack(END64_SIGNATURE, *fixed, count, count, length, begin)
        wide += LOCATOR64.pack(LOCATOR64_SIGNATURE, 0, begin + length, 1)
        count, length, begin = MAX_16, MAX_32, MAX_32
    return wide + END.pack(END_SIGNATURE, 0, 0, count, count, length, begin, 0)
