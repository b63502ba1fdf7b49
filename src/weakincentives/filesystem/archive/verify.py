"""Verification of archives: every byte is decompressed and checked before any is returned."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from weakincentives.filesystem.archive.format import (
    DEFAULT_ARCHIVE_LIMITS,
    LOCAL,
    LOCAL_SIGNATURE,
    STORED,
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    decode_manifest,
    summarize,
)
from weakincentives.filesystem.archive.tree import ArchivedFile, ArchivedFolder, ArchiveTree
from weakincentives.filesystem.archive.zip_reader import (
    ZipReader,
    damage_error,
    read_directory,
    read_members,
)
from weakincentives.filesystem.manifest import MANIFEST, VERSION, ArchiveDocument, ArchiveManifest
from weakincentives.posix import (
    DEFAULT_CODEC,
    Codec,
    check_time,
    open_regular,
    parallel_map,
    shorten_path,
)

_MAX_CACHED = 64 * 1024 * 1024  # bytes of verified content that stay in memory
_MAX_WHOLE = 4 * 1024 * 1024  # bytes, compressed or not; larger entries are read in chunks
_MAX_SPAN = 256 * 1024  # compressed bytes of several entries that are read at once
_OFFSET = ZipMember._fields.index("offset")


class _Item(NamedTuple):
    """An entry to verify; `file` is None for directories and the manifest."""

    member: ZipMember
    file: ArchivedFile | None
    is_cached: bool


class ArchiveVerifier:
    """Verifies the entries of an archive in one pass, in the order they are stored."""

    def __init__(self, reader: ZipReader, members: Iterable[ZipMember], codec: Codec) -> None:
        """Check that no entries overlap by their declared sizes."""
        self._reader = reader
        self._codec = codec
        self._members = sorted(members, key=itemgetter(_OFFSET))
        free = 0
        for member in self._members:
            if member.offset < free:
                raise _overlap_error(member)
            free = member.least_end
            if free > reader.end:
                raise damage_error(member, "overlaps the central directory")

    def run(self, files: Mapping[str, ArchivedFile]) -> None:
        """Verify all content; that of small files is cached.

        Raises:
            ArchiveError: Content differs from its declared size or checksum.
        """
        free = 0
        with closing(parallel_map(self._verify_batch, self._batches(files))) as verified:
            for first, end in verified:
                if first.offset < free:
                    raise _overlap_error(first)
                free = end

    def _batches(self, files: Mapping[str, ArchivedFile]) -> Iterator[list[_Item]]:
        """Yield groups of neighbouring entries; a large entry is a batch of its own."""
        batch: list[_Item] = []
        begin = unpacked = 0
        room = _MAX_CACHED
        for member in self._members:
            is_large = _is_large(member)
            is_far = member.least_end - begin > _MAX_SPAN or unpacked + member.size > _MAX_WHOLE
            if batch and (is_large or is_far):
                yield batch
                batch, unpacked = [], 0
            if not batch:
                begin = member.offset
            file = files.get(member.name)
            is_cached = file is not None and not is_large and member.size <= room
            if is_cached:
                room -= member.size
            batch.append(_Item(member, file, is_cached))
            unpacked += _MAX_WHOLE + 1 if is_large else member.size
        if batch:
            yield batch

    def _verify_batch(self, batch: list[_Item]) -> tuple[ZipMember, int]:
        """Verify a batch; return its first entry and the end of the last one."""
        check_time("Archive")
        first = batch[0].member
        if _is_large(first):
            return first, self._verify_large(first, batch[0].file)
        buffer = self._reader.read_bytes(first.offset, batch[-1].member.least_end - first.offset)
        view = memoryview(buffer)
        free = first.offset
        for member, file, is_cached in batch:
            if member.offset < free:
                raise _overlap_error(member)
            start = self._find_content(buffer, member, member.offset - first.offset)
            free = start + member.packed_size
            if file is None:
                continue
            begin = start - first.offset
            data = self._decompress(member, view[begin : begin + member.packed_size])
            _compare(file, hashlib.sha256(data).hexdigest())
            file.start = start
            if is_cached:
                file.data = data
        return first, free

    def _find_content(self, buffer: bytes, member: ZipMember, at: int) -> int:
        """Check the local header at `at` in `buffer`; return where the content begins."""
        name = member.name.encode()
        if len(buffer) >= at + LOCAL.size:
            fields = LOCAL.unpack_from(buffer, at)
            _, flags, method, crc, packed_size, size, _, _ = member[0:8]
            expected = (flags, method, *fields[4:6], crc, packed_size, size, len(name), 0)
            is_same = fields[0] == LOCAL_SIGNATURE and fields[2:] == expected
            if is_same and buffer.startswith(name, at + LOCAL.size):
                return member.offset + LOCAL.size + len(name)
        return self._reader.find_content(member)

    def _decompress(self, member: ZipMember, packed: memoryview) -> bytes:
        data = None
        if len(packed) == member.packed_size:
            is_stored = member.method == STORED
            data = bytes(packed) if is_stored else self._codec.inflate(packed, member.size)
        if data is None:
            return self._reader.read(member)  # raises the precise error
        if self._codec.crc32(data) != member.crc:
            raise damage_error(member, "is damaged (wrong CRC-32)")
        return data

    def _verify_large(self, member: ZipMember, file: ArchivedFile | None) -> int:
        start = self._reader.find_content(member)
        if file is not None:
            digest = hashlib.sha256()
            for chunk in self._reader.read_chunks(member, start):
                digest.update(chunk)
            _compare(file, digest.hexdigest())
            file.start = start
        return start + member.packed_size


def _find_manifest(members: Sequence[ZipMember]) -> ZipMember | None:
    return next((each for each in reversed(members) if each.name == MANIFEST), None)


def _plain_manifest(descriptor: int, members: Sequence[ZipMember]) -> ArchiveDocument:
    """Return the manifest of an archive without one; its date is that of the ZIP file.

    Raises:
        ArchiveError: There are no files: to import it would empty the workspace.
    """
    sizes = [each.size for each in members if not each.is_directory]
    if not sizes:
        raise ArchiveError(f"Archive has no files and no manifest: {MANIFEST!r} is missing")
    modified_at = datetime.fromtimestamp(int(os.fstat(descriptor).st_mtime), UTC)
    return ArchiveDocument(VERSION, modified_at.isoformat(), len(sizes), sum(sizes))


def _is_large(member: ZipMember) -> bool:
    return member.size > _MAX_WHOLE or member.packed_size > _MAX_WHOLE


def _compare(file: ArchivedFile, digest: str) -> None:
    if file.sha256 not in ("", digest):
        name = shorten_path(file.member.name)
        raise ArchiveError(f"File is damaged (wrong SHA-256): {name!r}")
    file.sha256 = digest


def _overlap_error(member: ZipMember) -> ArchiveError:
    return damage_error(member, "overlaps another entry")


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """A verified archive; `descriptor` is the open file, which the caller closes."""

    manifest: ArchiveManifest
    root: ArchivedFolder
    descriptor: int


def read_archive(
    path: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS, *, codec: Codec = DEFAULT_CODEC
) -> ArchiveState:
    """Verify an archive and return its content.

    Raises:
        ArchiveError: It is not an archive, is damaged, contradicts itself, is too large, or
            contains something that must not be in a workspace.
        OSError: It cannot be read.
    """
    descriptor = open_archive(path)
    try:
        size = os.fstat(descriptor).st_size
        directory, count, end = read_directory(descriptor, size, limits)
        members = read_members(directory, count)
        reader = ZipReader(descriptor, end)
        verification = ArchiveVerifier(reader, members, codec)
        has_manifest = _find_manifest(members) is not None
        manifest = (
            read_manifest(reader, members, limits)
            if has_manifest
            else _plain_manifest(descriptor, members)
        )
        summary = summarize(manifest)
        tree = ArchiveTree(limits)
        if manifest.files is None:
            tree.add_members(members)
        else:
            tree.add_manifest(members, manifest)
        tree.check(summary, size)
        verification.run(tree.files)
    except BaseException:
        os.close(descriptor)
        raise
    return ArchiveState(summary, tree.root, descriptor)


def open_archive(path: Path) -> int:
    """Open an archive for reading; it must be a regular file.

    Raises:
        ArchiveError: It is a link, directory, pipe or device.
    """
    try:
        return open_regular(path)[0]
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        raise ArchiveError(f"Archive is not a regular file: {str(path)!r}") from None


def read_manifest(
    reader: ZipReader, members: Sequence[ZipMember], limits: ArchiveLimits
) -> ArchiveDocument:
    """Return the manifest of an archive.

    Raises:
        ArchiveError: It is missing or invalid.
    """
    member = _find_manifest(members)
    if member is None:
        raise ArchiveError(f"Archive has no manifest: {MANIFEST!r} is missing")
    if member.size > limits.max_manifest_bytes:
        raise ArchiveError(
            f"Manifest is larger than {limits.max_manifest_bytes} bytes: {member.size}"
        )
    return decode_manifest(reader.read(member), limits)
